"""Programs are compiled with options at all kinds of values. `python -m tests.fuzz.options` tries more of them."""

from __future__ import annotations

import ctypes
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor
from itertools import islice
from multiprocessing import get_context
from random import Random
from typing import Any
from unittest import mock

import pytest
import torch

from compilefarm.core.functorch_settings import FUNCTORCH
from compilefarm.core.inductor_settings import INDUCTOR
from compilefarm.worker.source_check import UnexpectedSource
from tests.lean import begin

from . import guarded_memory, options
from .guarded import in_child
from .options import RAISES, REFUSED, RIGHT, UNEXPECTED, WRONG, Example, try_options, values_of

EXAMPLE = Example(name="sums", model=torch.sin, inputs=(torch.ones(3, 5),))


@pytest.fixture(scope="module")
def apart() -> Iterator[Executor]:
    """A process that has no threads yet, and forks."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=begin) as executor:
        executor.submit(guarded_memory.build).result()
        yield executor


def test_all_values_are_ones_that_a_request_may_have() -> None:
    for table in (INDUCTOR, FUNCTORCH):
        for name, kind in table.allowed.items():
            values = values_of(kind)
            assert values
            assert all(map(kind.admits, values)), name


def test_each_option_has_its_turn() -> None:
    known = options.known_options().keys()
    assert len(known) > 150
    assert {name for drawn in islice(options.drawn(Random(1)), 200) for name in drawn} == known


def _wrong(*given: torch.Tensor) -> list[torch.Tensor]:
    return [given[0].sin() + 0.1]


def _right(*given: torch.Tensor) -> list[torch.Tensor]:
    return [given[0].sin()]


def _reaching(*given: torch.Tensor) -> list[torch.Tensor]:
    ctypes.string_at(given[0].data_ptr() + given[0].nbytes, 1)
    return [given[0].sin()]


def _writing(*given: torch.Tensor) -> list[torch.Tensor]:
    ctypes.memset(given[0].data_ptr() - 1, 0, 1)
    return [given[0].sin()]


def _raises(error: Exception) -> Callable[..., Any]:
    def raise_error(*_: Any) -> Any:
        raise error

    return raise_error


def _with(program: Any, given: Mapping[str, Any]) -> str:
    """What becomes of a program that stands in for what is compiled."""
    compile_ = _raises(program) if isinstance(program, Exception) else lambda _: program
    with mock.patch("tests.worker.inductor.compiled", compile_):
        return try_options(EXAMPLE, given, against_end=True)


@pytest.mark.parametrize(
    ("program", "outcome"),
    [
        (_right, RIGHT),
        (_wrong, WRONG),
        (_reaching, "reaches beyond its tensors"),
        (_writing, "writes beyond its tensors"),
        (RuntimeError("no"), RAISES),
        (UnexpectedSource("no"), UNEXPECTED),
    ],
)
def test_what_becomes_of_programs(apart: Executor, program: Any, outcome: str) -> None:
    assert apart.submit(_with, program, {"epilogue_fusion": False}).result() == outcome


def _start_something(pipe: int) -> int:
    os.write(pipe, b"%d" % subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]).pid)
    return 0


def _what_a_trial_left() -> int:
    read, write = os.pipe()
    assert in_child(lambda: _start_something(write)) == 0
    return int(os.read(read, 20))


def test_what_a_trial_has_started_ends_with_it(apart: Executor) -> None:
    left = apart.submit(_what_a_trial_left).result()
    try:
        ended = os.pidfd_open(left)
    except ProcessLookupError:
        return
    assert select.select([ended], [], [], 60.0)[0]


def test_what_no_request_may_ask_for_is_refused(apart: Executor) -> None:
    assert apart.submit(_with, _right, {"cpp_wrapper": True}).result() == REFUSED


def test_what_is_left_of_options_are_those_that_matter() -> None:
    drawn = {f"option {number}": number for number in range(40)}
    needed = {"option 3": 3, "option 29": 29}
    left = options.shrunk(
        drawn, outcome=WRONG, attempt=lambda fewer: WRONG if needed.items() <= fewer.items() else RIGHT
    )
    assert left == needed


@pytest.mark.compiles
@pytest.mark.timeout(300)
def test_a_program_with_many_options_is_right(apart: Executor) -> None:
    assert apart.submit(_compiled_with_many).result() == RIGHT


def _compiled_with_many() -> str:
    options.prepare()
    every = {
        "memory_planning": True,
        "memory_pool": "combined",
        "combo_kernels": True,
        "max_fusion_size": 0,
        "padding_alignment_bytes": 128,
        "padding_stride_threshold": 0,
        "disable_padding_cpu": False,
    }
    (example,) = (each for each in options.examples() if each.name == "shapes of any size")
    return try_options(example, every, against_end=True)
