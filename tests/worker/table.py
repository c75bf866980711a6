"""Rows of the tables of the check: one program each, right or with mistakes."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, replace

from compilefarm.worker.comparison import VerificationFailed
from tests.worker.detection import attempts
from tests.worker.inductor import checked_compile, encoded
from tests.worker.large import LARGE
from tests.worker.programs import RightProgram, right_programs

_MISTAKES_OF_A_KIND = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A program to be tried.

    Attributes:
        kind: "right" or "large", which go through Inductor, or "wrong", in which mistakes are made.
        name: of the program.
        device: on which it runs.
    """

    kind: str
    name: str
    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What came of it.

    Attributes:
        task: the program.
        tried: how many artifacts were checked: one, or one for each mistake.
        surprises: right programs that were refused, wrong ones that were not, and what failed.
        error: distance from the reference, as a share of what is allowed.
        seconds: how long it took.
    """

    task: Task
    tried: int
    surprises: list[str]
    error: float = 0.0
    seconds: float = 0.0


def tasks_of(*, device: str, kinds: Set[str]) -> Iterator[Task]:
    """All of some kinds, those that take long first."""
    if "large" in kinds:
        yield from (Task(kind="large", name=name, device=device) for name in LARGE)
    names = [program.name for program in right_programs()]
    for kind in sorted(kinds & {"right", "wrong"}):
        yield from (Task(kind=kind, name=name, device=device) for name in names)


def row_of(task: Task) -> Row:
    """Tries one."""
    started = time.perf_counter()
    row = _ROWS[task.kind](task)
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
    return Row(task=task, tried=1, surprises=[], error=found.error / found.allowed_error if found.referenced else 0.0)


def _wrong(task: Task) -> Row:
    tried = list(attempts(_program_of(task), each=_MISTAKES_OF_A_KIND))
    missed = [f"missed: {each.mutation.kind} at node {each.mutation.number}" for each in tried if not each.refusal]
    return Row(task=task, tried=len(tried), surprises=missed)


_ROWS: dict[str, Callable[[Task], Row]] = {"right": _right, "large": _right, "wrong": _wrong}
KINDS = tuple(_ROWS)
