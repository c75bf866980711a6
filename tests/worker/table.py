"""Rows of the tables of the check: one program each, right or with mistakes."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, replace

from compilefarm.v1.manifest_pb2 import Verification
from compilefarm.worker.comparison import VerificationFailed
from tests.corpus.program import Lacking
from tests.corpus.run import run_compiled
from tests.corpus.table import PROGRAMS
from tests.worker.detection import attempts
from tests.worker.inductor import checked_compile, encoded
from tests.worker.large import LARGE
from tests.worker.operators import EagerFails, NoSample, OnStage, Sizes, names_of_operators, try_operator
from tests.worker.programs import RightProgram, right_programs
from tests.worker.single_process import GraphReport, Outcome, SingleProcessFarm, compiled, decomposed

_MISTAKES_OF_A_KIND = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A program to be tried.

    Attributes:
        kind: "right" or "large", which go through Inductor, "wrong", in which mistakes are made, or "operators" and
            "corpus", which go all the way from a pod to a pod.
        name: of the program.
        device: on which it runs.
        samples: how many samples of an operator are tried.
        compiles: whether programs that go all the way are compiled, or taken apart into Inductor's operators alone.
        dynamic: whether sizes of an operator's inputs differ from call to call.
    """

    kind: str
    name: str
    device: str
    samples: int = 1
    compiles: bool = True
    dynamic: bool = False

    @property
    def limit_seconds(self) -> float:
        """How long it may take."""
        return {"operators": 90.0, "corpus": 180.0}.get(self.kind, 900.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What came of it.

    Attributes:
        task: the program.
        tried: how many artifacts were checked: one, or one for each mistake.
        surprises: right programs that were refused, wrong ones that were not, and what failed.
        error: distance from the reference, as a share of what is allowed.
        seconds: how long it took.
        outcomes: of an operator, what came of each of its graphs, or why there are none.
        message: why, for people.
    """

    task: Task
    tried: int
    surprises: list[str]
    error: float = 0.0
    seconds: float = 0.0
    outcomes: tuple[str, ...] = ()
    message: str = ""


def tasks_of(*, device: str, kinds: Set[str]) -> Iterator[Task]:
    """All of some kinds, those that take long first."""
    if "large" in kinds:
        yield from (Task(kind="large", name=name, device=device) for name in LARGE)
    names = [program.name for program in right_programs()]
    for kind in sorted(kinds & {"right", "wrong"}):
        yield from (Task(kind=kind, name=name, device=device) for name in names)
    if "corpus" in kinds:
        yield from (Task(kind="corpus", name=name, device=device) for name in PROGRAMS)
    if "operators" in kinds:
        names = list(names_of_operators(device))
        yield from (Task(kind="operators", name=name, device=device) for name in names)


def row_of(task: Task, *, on_stage: OnStage = lambda _: None) -> Row:
    """Tries one; `on_stage` is told what is done next."""
    started = time.perf_counter()
    row = _ROWS[task.kind](task) if task.kind in _ROWS else _all_the_way(task, on_stage)
    return replace(row, seconds=time.perf_counter() - started)


@functools.cache
def _programs(device: str) -> dict[str, RightProgram]:
    return {program.name: program for program in right_programs(device=device)}


def _program_of(task: Task) -> RightProgram:
    if task.kind != "large":
        return _programs(task.device)[task.name]
    import torch

    torch.manual_seed(0)
    with torch.device(task.device):
        return LARGE[task.name]()


def _right(task: Task) -> Row:
    try:
        found = checked_compile(encoded(_program_of(task)))
    except VerificationFailed as refused:
        return Row(task=task, tried=1, surprises=[f"refused: {refused}"])
    return Row(task=task, tried=1, surprises=[], error=_share_of_allowed(found))


def _wrong(task: Task) -> Row:
    tried = list(attempts(_program_of(task), each=_MISTAKES_OF_A_KIND))
    missed = [f"missed: {each.mutation.kind} at node {each.mutation.number}" for each in tried if not each.refusal]
    return Row(task=task, tried=len(tried), surprises=missed)


def _all_the_way(task: Task, on_stage: OnStage) -> Row:
    farm = SingleProcessFarm(make=compiled if task.compiles else decomposed, on_stage=on_stage)
    try:
        if task.kind == "operators":
            sizes = Sizes(samples=task.samples, dynamic=task.dynamic)
            try_operator(task.name, farm.backend, device=task.device, sizes=sizes, on_stage=on_stage)
        else:
            run_compiled(PROGRAMS[task.name], farm.backend)
    except (NoSample, Lacking) as lacking:
        return Row(task=task, tried=0, surprises=[], outcomes=("nothing to try",), message=str(lacking))
    except EagerFails as error:
        return Row(task=task, tried=0, surprises=[], outcomes=("eager fails",), message=str(error))
    except Exception as error:  # noqa: BLE001 - Dynamo's; all else is in the reports
        said = f"{type(error).__name__}: {error}"
        return Row(task=task, tried=0, surprises=[], outcomes=("Dynamo fails",), message=said)
    return _of_reports(task, farm.reports)


def _of_reports(task: Task, reports: Sequence[GraphReport]) -> Row:
    return Row(
        task=task,
        tried=len(reports),
        surprises=[f"{each.outcome.value}: {each.message}" for each in reports if each.outcome.is_surprise],
        outcomes=tuple(map(_words_of, reports)) or ("no graph",),
        message="; ".join(each.message for each in reports if each.message),
        error=max((_share_of_allowed(each.figures) for each in reports if each.figures is not None), default=0.0),
    )


def _words_of(report: GraphReport) -> str:
    reason = f": {report.message.partition(':')[0]}" if report.outcome is Outcome.BYPASS else ""
    return f"{report.outcome.value}{reason}"


def _share_of_allowed(figures: Verification) -> float:
    return figures.error / figures.allowed_error if figures.referenced else 0.0


_ROWS: dict[str, Callable[[Task], Row]] = {"right": _right, "large": _right, "wrong": _wrong}
KINDS = (*_ROWS, "operators", "corpus")
