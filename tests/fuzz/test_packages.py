"""Packages of Dynamo that were changed harm no pod. `python -m tests.fuzz.packages` tries more of them."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context
from random import Random
from typing import Any
from unittest import mock

import pytest
import torch._dynamo

from compilefarm.core.requests import pack_request, unpack_request
from compilefarm.reuse import installation
from compilefarm.reuse.refusals import Differs
from tests.lean import begin

from . import packages
from .packages import HARMLESS, RAISES, READ, REFUSED, REUSED, SLOW, STATE, TRACED, WRONG, Example
from .started_programs import programs

CASES = 10
# Of a processor, for a package whose installation goes on for ever.
FEW_SECONDS = 0.5


@pytest.fixture(scope="module")
def apart() -> Iterator[Executor]:
    """A process that has no threads yet, and forks."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=begin) as executor:
        yield executor


@functools.cache
def _examples() -> Sequence[Example]:
    return packages.prepare([each for each in programs() if each.name in ("function", "closure")])


def test_a_sample_of_changed_packages(apart: Executor) -> None:
    outcomes = apart.submit(_outcomes_of_a_sample).result()
    assert set(outcomes) <= set(HARMLESS)
    # Otherwise none was read, or none installed.
    assert {REFUSED, REUSED, TRACED} <= set(outcomes)


def _outcomes_of_a_sample() -> list[str]:
    return [packages.try_case(_examples(), seed=32, number=number)[1] for number in range(CASES)]


def _leaves_a_limit(*_: Any, **__: Any) -> Any:
    torch._dynamo.config.recompile_limit += 1
    raise Differs("no")


def _goes_on(*_: Any, **__: Any) -> Any:
    while True:
        pass


def _runs_out_of_memory(*_: Any, **__: Any) -> Any:
    # Which is no matter of a package, and goes on through the call.
    raise MemoryError


def _ends(*_: Any, **__: Any) -> Any:
    os.kill(os.getpid(), signal.SIGSEGV)


def _other_program(_: Any) -> Any:
    return lambda x, *_: (x + 1,)


@pytest.mark.parametrize(
    ("name", "fault", "outcome"),
    [
        ("verify_guards", installation.verify_guards, REUSED),
        ("verify_guards", _leaves_a_limit, STATE),
        ("verify_guards", _goes_on, SLOW),
        ("verify_guards", _runs_out_of_memory, RAISES),
        ("verify_guards", _ends, f"ends the process ({-signal.SIGSEGV})"),
        ("wrapped_program", _other_program, WRONG),
    ],
)
def test_a_fault_of_the_installation_is_found(
    apart: Executor, name: str, fault: Callable[..., Any], outcome: str
) -> None:
    assert apart.submit(_with, name, fault).result() == outcome


def _with(name: str, fault: Callable[..., Any]) -> str:
    """What becomes of a package that nobody changed, with a fault in the installation."""
    example = next(each for each in _examples() if each.program.name == "closure")
    said = packages.said_of(example.stored[0])
    seconds = FEW_SECONDS if fault is _goes_on else packages.CASE_SECONDS
    with mock.patch.object(installation, name, fault), mock.patch.object(packages, "CASE_SECONDS", seconds):
        return packages.outcome_of(lambda: packages.try_package(example, said, place=0))


def test_a_fault_of_what_reads_packages_is_found(apart: Executor) -> None:
    assert apart.submit(_stored_with, "unpack", _cannot).result() == {RAISES}
    assert READ in apart.submit(_stored_with, "read", _something_else).result()


def _cannot(*_: Any, **__: Any) -> Any:
    raise KeyError("name")


def _something_else(*_: Any, **__: Any) -> Any:
    return object()


def _stored_with(name: str, fault: Callable[..., Any]) -> set[str]:
    (stored, *_) = _examples()[0].stored
    with mock.patch.object(packages, name, fault):
        return {
            packages.outcome_of(lambda: packages.try_stored(stored, Random(number)))  # noqa: B023
            for number in range(10)
        }


def test_a_request_for_a_gpu_that_is_not_there_costs_a_trace(apart: Executor) -> None:
    assert apart.submit(_for_a_gpu).result() == TRACED


def _for_a_gpu() -> str:
    said = packages.said_of(_examples()[0].stored[0])
    (program,) = said.programs
    request = unpack_request(program.request)
    request.job.environment.cuda.SetInParent()
    program.request = pack_request(request)
    packages.rename(said, program)
    return packages.outcome_of(lambda: packages.try_package(_examples()[0], said, place=0))
