"""Runs programs of the table."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from compilefarm.client import Farm, stats
from compilefarm.client.records import GraphRecord
from tests.guard_timing import guards_not_timed

from .codec import CodecBackend, GraphReport
from .comparison import Leaf, differences, look_at
from .program import Case, Function, Lacking, Program

_SEED = 1234
_SENT = ("hit", "joined", "compiled")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What became of one program.

    Attributes:
        name: of the program.
        lacking: why it could not run here; None if it did.
        graphs: what became of its graphs.
        wrong: in what its results differ from eager's.
        unlike_local: in what its results differ from those of a local compile by Inductor, to the bit; None where
            nothing was compiled.
        local_failure: how a local compile by Inductor fails; None if it does not, or nothing was compiled.
        crash: what was raised outside its graphs.
        seconds: spent on it.
    """

    name: str
    lacking: str | None = None
    graphs: tuple[GraphReport, ...] = ()
    wrong: tuple[str, ...] = ()
    unlike_local: tuple[str, ...] | None = None
    local_failure: str | None = None
    crash: str = ""
    seconds: float = 0.0

    @property
    def crashes(self) -> list[str]:
        """Everything that was raised and should not have been."""
        return [*filter(None, [self.crash]), *(graph.message for graph in self.graphs if graph.outcome == "crash")]

    @property
    def differences(self) -> list[str]:
        """Everything in which it is not right."""
        return [*self.wrong, *(difference for graph in self.graphs for difference in graph.unfaithful)]


def check_codec(program: Program) -> Row:
    """Runs a program with every graph replaced by what the codec makes of it. Compiles nothing."""
    if not program.eager:
        return Row(name=program.name, lacking=f"torch {torch.__version__} only runs its graphs compiled")
    backend = CodecBackend()

    def check(expected: list[Leaf]) -> Row:
        given = _run(program, _compiler(program, backend))
        if program.random:
            expected = _run(program, _compiler(program, "eager"))
        return Row(name=program.name, wrong=tuple(differences(given, expected, precision=program.precision)))

    with guards_not_timed():
        return _row(program, check, reports=lambda: backend.reports)


def run_compiled(program: Program, backend: Any) -> None:
    """Runs a program compiled by a backend.

    Raises:
        Lacking: it cannot run here.
    """
    _run(program, _compiler(program, backend))


def check_farm(program: Program, farm: Farm) -> Row:
    """Runs a program compiled by a farm, and compiled by Inductor here.

    Inductor fails on some programs. There a farm may do better, or has to fail alike.
    """
    before = len(stats())

    def check(expected: list[Leaf]) -> Row:
        given = _attempt(program, farm.backend)
        local = _attempt(program, "inductor")
        if isinstance(local, str):
            return _beside_a_failure(program, given, expected, local_failure=local)
        if isinstance(given, str):
            return Row(name=program.name, crash=given)
        return Row(
            name=program.name,
            wrong=tuple(differences(given, local if program.random else expected, precision=program.precision)),
            unlike_local=tuple(differences(given, local)),
        )

    row = _row(program, check, reports=lambda: [_report(record) for record in stats()[before:]])
    if row.local_failure is not None and not row.crash:
        # The farm was asked, and could not help.
        return replace(row, graphs=tuple(_excused(graph) for graph in row.graphs))
    return row


def _attempt(program: Program, backend: Any) -> list[Leaf] | str:
    """What can be seen of a run, or how it failed."""
    try:
        return _run(program, _compiler(program, backend))
    except Exception:  # noqa: BLE001 - the caller judges it
        return traceback.format_exc()


def _beside_a_failure(program: Program, given: list[Leaf] | str, expected: list[Leaf], *, local_failure: str) -> Row:
    row = Row(name=program.name, local_failure=_failure_line(local_failure))
    if not isinstance(given, str):
        # Random numbers of a compiled program have nothing else to be held against.
        wrong = () if program.random else tuple(differences(given, expected, precision=program.precision))
        return replace(row, wrong=wrong)
    if _failure_line(given) != _failure_line(local_failure):
        return replace(row, crash=given)
    return row


def _failure_line(trace: str) -> str:
    """The line with the type and the message of an exception."""
    return next(line for line in trace.splitlines()[1:] if line and not line.startswith(" "))


def _excused(graph: GraphReport) -> GraphReport:
    return replace(graph, outcome="sent") if graph.outcome == "crash" else graph


def _row(program: Program, check: Callable[[list[Leaf]], Row], *, reports: Callable[[], list[GraphReport]]) -> Row:
    started = time.perf_counter()
    try:
        row = check(_run(program, lambda function: function))
    except Lacking as lacking:
        return Row(name=program.name, lacking=str(lacking))
    except Exception:  # noqa: BLE001 - a crash is a finding of the run, and the next program has its turn
        row = Row(name=program.name, crash=traceback.format_exc())
    return replace(row, graphs=tuple(reports()), seconds=time.perf_counter() - started)


def _compiler(program: Program, backend: Any) -> Callable[[Function], Function]:
    def compile_function(function: Function) -> Function:
        compiled: Function = torch.compile(function, backend=backend, dynamic=program.dynamic)
        return compiled

    return compile_function


def _run(program: Program, compile_function: Callable[[Function], Function]) -> list[Leaf]:
    """Runs a fresh case of a program, and returns all that can be seen of it."""
    # What was traced before would make sizes symbolic.
    torch.compiler.reset()
    with program.context(), torch.set_grad_enabled(program.training):
        torch.manual_seed(_SEED)
        case = program.build()
        torch.manual_seed(_SEED)
        return _observed(case, compile_function(case.function))


def _observed(case: Case, function: Function) -> list[Leaf]:
    seen = []
    for number, given in enumerate(case.calls):
        seen += look_at(f"result {number}", case.use(function, given))
    for number, given in enumerate(case.calls):
        seen += look_at(f"argument {number}", [given.args, dict(given.kwargs)])
    if isinstance(case.function, torch.nn.Module):
        # Not detached: gradients hang on the originals.
        for name, tensor in (*case.function.named_parameters(), *case.function.named_buffers()):
            seen += look_at(name, tensor)
    return seen


def _report(record: GraphRecord) -> GraphReport:
    if record.outcome == "bypass":
        return GraphReport(outcome="bypass", reason=record.reason, message=record.message)
    compiled = record.outcome in _SENT
    # A fallback serves the user, but the farm was asked and has failed.
    return GraphReport(
        outcome="sent" if compiled else "crash", reason=record.reason, message=record.message, compiled=compiled
    )
