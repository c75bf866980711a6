"""Runs one program: uncompiled, compiled by a cold farm, and once more when the farm has its artifacts."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch.fx import GraphModule

from compilefarm.client import stats
from compilefarm.client.records import GraphRecord
from tests.corpus.codec import CodecBackend, GraphReport
from tests.corpus.comparison import Leaf, differences, farther, look_at
from tests.guard_timing import guards_not_timed

from .program import Compiler, Lacking, Program

_SEED = 1234
_SERVED = ("hit", "joined", "compiled")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What became of one program.

    Attributes:
        library: whose program it is.
        name: of the program.
        skipped: why it could not run here; empty if it did.
        graphs: number of graphs that Dynamo captured, in the cold run.
        uncaptured: why none is expected; empty if some are.
        served: of these, those that ran as programs of the farm.
        refused: why the others did not, each with its reason.
        compiled_again: graphs that the farm compiled in the warm run, too.
        wrong: in what its results differ from those of the uncompiled run.
        error: what was raised.
        cold_seconds: of the cold run, Dynamo and the farm's compiles included.
        warm_seconds: of the warm run.
    """

    library: str
    name: str
    skipped: str = ""
    graphs: int = 0
    uncaptured: str = ""
    served: int = 0
    refused: Sequence[str] = ()
    compiled_again: int = 0
    wrong: Sequence[str] = ()
    error: str = ""
    cold_seconds: float = 0.0
    warm_seconds: float = 0.0

    @property
    def is_right(self) -> bool:
        """Whether it ran to the end and gave what it should."""
        return not self.wrong and not self.error


@dataclass(frozen=True, slots=True, kw_only=True)
class _Right:
    """What a program computes where nothing is compiled.

    Attributes:
        precision: of its numbers inside.
        expected: its results.
        reference: the same in high precision, if they are held against that.
    """

    precision: torch.dtype
    expected: Sequence[Leaf]
    reference: Sequence[Leaf] | None

    @classmethod
    def of(cls, program: Program, device: torch.device) -> Self:
        """What a program computes on a device."""
        compiler = Compiler(backend=None, device=device)
        expected, _ = _observed(program, compiler)
        reference = None
        if program.reference is not None:
            reference, _ = _observed(replace(program, run=program.reference), compiler)
        return cls(precision=program.precision, expected=expected, reference=reference)

    def differences(self, given: Sequence[Leaf]) -> list[str]:
        """In words, what other results have wrong."""
        if self.reference is None:
            return differences(given, self.expected, precision=self.precision)
        return farther(given, self.expected, self.reference)


def run_on_farm(program: Program, *, library: str, device: torch.device) -> Row:
    """Runs a program with the farm that the environment names."""
    return _row(library, program.name, lambda row: _farm_row(row, program, device))


def run_through_codec(program: Program, *, library: str, device: torch.device) -> Row:
    """Runs a program with every graph replaced by what the codec makes of it. Compiles nothing."""
    with guards_not_timed():
        return _row(library, program.name, lambda row: _codec_row(row, program, device))


def run_with_inductor(program: Program, *, library: str, device: torch.device) -> Row:
    """Runs a program as torch itself compiles it, without a farm: what a difference or an error is held against."""
    return _row(library, program.name, lambda row: _inductor_row(row, program, device))


def _farm_row(row: Row, program: Program, device: torch.device) -> Row:
    right = _Right.of(program, device)
    compiler = Compiler(backend="compilefarm", device=device)
    before = len(stats())
    cold, cold_seconds = _observed_compiled(program, compiler)
    between = len(stats())
    warm, warm_seconds = _observed(program, compiler)
    records = stats()
    return replace(
        row,
        graphs=between - before,
        uncaptured=program.uncaptured,
        served=sum(record.outcome in _SERVED for record in records[before:between]),
        refused=[_refusal(record) for record in records[before:between] if record.outcome not in _SERVED],
        compiled_again=sum(record.outcome == "compiled" for record in records[between:]),
        wrong=[
            *_miscaptured(program, between - before),
            *right.differences(cold),
            *(f"warm: {each}" for each in right.differences(warm)),
        ],
        cold_seconds=cold_seconds,
        warm_seconds=warm_seconds,
    )


def _inductor_row(row: Row, program: Program, device: torch.device) -> Row:
    right = _Right.of(program, device)
    given, seconds = _observed_compiled(program, Compiler(backend="inductor", device=device))
    return replace(row, wrong=right.differences(given), cold_seconds=seconds)


def _codec_row(row: Row, program: Program, device: torch.device) -> Row:
    right = _Right.of(program, device)
    codec = CodecBackend()
    given, seconds = _observed_compiled(program, Compiler(backend=_without_options(codec), device=device))
    return replace(
        row,
        graphs=len(codec.reports),
        uncaptured=program.uncaptured,
        served=sum(report.outcome == "sent" for report in codec.reports),
        refused=[_described(report) for report in codec.reports if report.outcome != "sent"],
        wrong=[
            *_miscaptured(program, len(codec.reports)),
            *right.differences(given),
            *(difference for report in codec.reports for difference in report.unfaithful),
        ],
        cold_seconds=seconds,
    )


def _miscaptured(program: Program, graphs: int) -> list[str]:
    """What is wrong with the number of graphs: of a program without any, nothing was tried."""
    if graphs and program.uncaptured:
        return [f"{graphs} graphs were captured, and none expected: {program.uncaptured}"]
    return [] if graphs or program.uncaptured else ["no graph was captured, so that nothing was tried"]


def _row(library: str, name: str, look: Callable[[Row], Row]) -> Row:
    row = Row(library=library, name=name)
    try:
        return look(row)
    except Lacking as lacking:
        return replace(row, skipped=str(lacking))
    except Exception:  # noqa: BLE001 - a crash is a finding of the run, and the next program has its turn
        return replace(row, error=traceback.format_exc())


def _observed(program: Program, compiler: Compiler) -> tuple[list[Leaf], float]:
    """All that can be seen of a run, and its seconds."""
    # What was traced before would make sizes symbolic.
    torch.compiler.reset()
    with program.context(), torch.set_grad_enabled(program.training):
        torch.manual_seed(_SEED)
        started = time.perf_counter()
        result = program.run(compiler)
        seconds = time.perf_counter() - started
        return look_at("result", result), seconds


def _observed_compiled(program: Program, compiler: Compiler) -> tuple[list[Leaf], float]:
    """The same of a compiled run.

    Raises:
        Lacking: Dynamo fails alike where nothing is compiled.
    """
    try:
        return _observed(program, compiler)
    except Exception as error:
        alone = _failure_without_farm(program, compiler.device)
        if alone == _headline(error):
            raise Lacking(f"torch {torch.__version__} fails on it without a farm: {alone}") from error
        raise


def _failure_without_farm(program: Program, device: torch.device) -> str | None:
    try:
        _observed(program, Compiler(backend=_without_options(_uncompiled), device=device))
    except Exception as error:  # noqa: BLE001 - whatever is raised is compared
        return _headline(error)
    return None


def _uncompiled(graph_module: GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
    forward: Callable[..., Any] = graph_module.forward
    return forward


def _headline(error: Exception) -> str:
    # An assertion may have no words.
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _without_options(backend: Callable[[GraphModule, Sequence[Any]], Any]) -> Callable[..., Any]:
    # Modes and options say how to compile, and nothing is compiled.
    return lambda graph_module, inputs, **_: backend(graph_module, inputs)


def _refusal(record: GraphRecord) -> str:
    return f"{record.outcome}, {record.reason}: {record.message}"


def _described(report: GraphReport) -> str:
    return f"{report.outcome}, {report.reason}: {report.message.strip().splitlines()[-1]}"
