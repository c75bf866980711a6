"""The search for changed libraries that are reused wrongly finds them. `python -m tests.fuzz.sources` goes on."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import pytest
import torch

from compilefarm.reuse import capture, verification
from tests.lean import begin
from tests.wild.program import Compiler, Program

from .source_changes import changed
from .source_ways import with_changed_class, with_ways_of_numbers
from .sources import Found, Tries
from .started_libraries import (
    NO_RESULT,
    NOT_ASKED,
    NOT_IMPORTED,
    REUSED,
    SAME,
    TRACED,
    WRONG,
    Result,
    Seen,
    see,
    told_by_child,
)

_SOURCE = """import torch

RATE = 3.0


class Scaling(torch.nn.Module):
    def __init__(self, rate=RATE):
        super().__init__()
        self.rate = rate

    def scaled(self, x):
        if self.rate > 0:
            x = x * 2
        return x + self.rate

    def forward(self, x):
        return self.scaled(x) - 1.5
"""


@pytest.fixture(scope="module")
def apart() -> Iterator[Executor]:
    """A process that has no threads yet, and forks."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=begin) as executor:
        yield executor


def test_a_change_leaves_all_other_lines_as_they_are() -> None:
    lines, kinds = _SOURCE.split("\n"), set()
    for seed in range(100):
        found = changed(_SOURCE, range(len(lines)), Random(seed))
        assert found is not None
        source, what = found
        place, kind = what.removeprefix("line ").split(": ")
        compile(source, "changed", "exec")
        assert source.split("\n")[: int(place) - 1] == lines[: int(place) - 1]
        kinds.add(kind)
    assert len(kinds) > 10


def test_numbers_come_by_other_ways_to_the_same_place() -> None:
    made = with_ways_of_numbers(_SOURCE, range(30), Random(1), count=3)
    assert made is not None
    base, variants = made
    length = len(_SOURCE.split("\n")) - 1
    assert {tuple(source.split("\n")[:length]) for source, _ in variants} == {tuple(base.split("\n")[:length])}
    assert len({base, *(source for source, _ in variants)}) == len(variants) + 1
    assert with_changed_class(_SOURCE, set(range(30)), Random(1)) is not None


def test_a_program_of_which_nothing_runs_again_is_passed_over(tmp_path: Path) -> None:
    seen = Seen(modules=["own"], lines={"own.py": ({1, 2}, set())}, result=Result())
    tries = Tries(program=mock.Mock(), seen=seen, folder=tmp_path)
    assert {outcome for _, _, _, outcome in tries.changed_before(Random(1))} == {"nothing to change"}


def test_changed_libraries_are_traced(apart: Executor, tmp_path: Path) -> None:
    outcomes = apart.submit(_outcomes, tmp_path, is_blind=False).result()
    assert {each.partition(":")[0] for each in outcomes} <= {REUSED, SAME, TRACED, NOT_IMPORTED, NOT_ASKED, NO_RESULT}
    assert sum(each.startswith(TRACED) for each in outcomes) > 5


def test_a_wrong_reuse_is_found(apart: Executor, tmp_path: Path) -> None:
    assert any(each.startswith(WRONG) for each in apart.submit(_outcomes, tmp_path, is_blind=True).result())


def _outcomes(folder: Path, *, is_blind: bool) -> list[str]:
    """What becomes of changes of a library; if they are blind, packages are compared with nothing."""
    (folder / "variants").mkdir()
    (folder / "scaling_library.py").write_text(_SOURCE)
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(sys, "path", [str(folder), *sys.path]))
        if is_blind:
            stack.enter_context(mock.patch.object(capture._Capture, "_dependencies", return_value=()))
            stack.enter_context(mock.patch.object(capture, "places_of", return_value=[]))
            stack.enter_context(mock.patch.object(verification, "_require"))
        importlib.invalidate_caches()
        program = Program(name="scaling", run=_run)
        seen = told_by_child(lambda: see(program, folder))
        tries = Tries(program=program, seen=seen, folder=folder / "variants")
        found: list[Found] = told_by_child(lambda: tries.plain(Random(7)))
    return [outcome for *_, outcome in found]


def _run(compiler: Compiler) -> Any:
    library = importlib.import_module("scaling_library")
    module = library.Scaling()
    return compiler(lambda x: module(x))(torch.ones(3))
