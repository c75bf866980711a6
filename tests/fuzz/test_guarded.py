"""Operators are tried on memory that ends where their tensors do. `python -m tests.fuzz.guarded` tries all of them."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context
from unittest import mock

import pytest
import torch

from tests.lean import begin

from . import guarded, guarded_memory
from .further_calls import further_calls
from .guarded import FOUND, PODS_OWN, REFUSED, RESULT, WROTE, Plan
from .hostile_calls import HostileCall
from .hostile_graphs import believed_inputs, job_of

# It reads the row of its second tensor that an index names.
BEYOND = HostileCall(
    operator=torch.ops.aten._embedding_bag_per_sample_weights_backward.default,
    args=[
        torch.ones(1, 4),
        torch.ones(3, 4),
        torch.tensor([0, 10**7]),
        torch.tensor([0]),
        torch.tensor([0, 0]),
        0,
    ],
    kwargs={},
)
CONTRADICTING = HostileCall(
    operator=torch.ops.aten._foreach_copy.default, args=[[torch.ones(3)], [torch.ones(3), torch.ones(3)]], kwargs={}
)
FITTING = HostileCall(
    operator=torch.ops.aten.index_select.default, args=[torch.ones(3, 2), 0, torch.tensor([2, 0])], kwargs={}
)
# It takes the last row for the first of two that belong together. A farm gives it other pivots.
SWAPPING = HostileCall(
    operator=torch.ops.aten.linalg_ldl_solve.default,
    args=[torch.eye(3), torch.tensor([1, 2, -3], dtype=torch.int32), torch.ones(3, 2)],
    kwargs={},
)
PLAN = Plan(way="eager", seed=0, calls=1, against_end=True)


@pytest.fixture(scope="module")
def apart() -> Iterator[Executor]:
    """A process that has no threads yet, and forks."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=begin) as executor:
        executor.submit(guarded_memory.build).result()
        yield executor


def _touch(place: int, against_end: bool) -> int:
    """The exit status of a process that writes to a byte of a tensor of twenty, counted from its first."""
    child = os.fork()
    if child == 0:
        guarded_memory.guard(against_end=against_end)
        tensor = guarded_memory.placed(torch.ones(2, 5).t())
        ctypes.memset(tensor.data_ptr() + place, 0, 1)
        os._exit(WROTE if guarded_memory.changed_patterns() else 0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize(
    ("place", "against_end", "status"),
    [
        (0, True, 0),
        (39, True, 0),
        (40, True, -11),
        (-1, True, WROTE),
        (0, False, 0),
        (-1, False, -11),
        (40, False, WROTE),
    ],
)
def test_bytes_beside_a_tensor(apart: Executor, place: int, against_end: bool, status: int) -> None:
    assert apart.submit(_touch, place, against_end).result() == status


def _outcomes(call: Callable[[], HostileCall], decoding: int | None) -> set[str]:
    """What becomes of a call.

    Args:
        call: makes it.
        decoding: the status of a process that decodes it; None: it is decoded.
    """
    decode = guarded._decode if decoding is None else lambda *_, **__: decoding
    with mock.patch.object(guarded, "_decode", decode):
        return {outcome for outcome, _ in guarded.try_operator(call().operator, [call()], plan=PLAN)}


def _beyond() -> HostileCall:
    return BEYOND


def _swapping() -> HostileCall:
    return SWAPPING


def _fitting() -> HostileCall:
    return FITTING


def test_what_reaches_beyond_its_tensors_is_a_find_where_the_farm_takes_it(apart: Executor) -> None:
    assert apart.submit(_outcomes, _beyond, None).result() == {f"{FOUND[0]}, and no pod sends it"}
    assert apart.submit(_outcomes, _beyond, 1).result() == {REFUSED}
    assert apart.submit(_outcomes, _beyond, 0).result() == {FOUND[0]}
    assert apart.submit(_outcomes, _fitting, None).result() == {RESULT}


def test_calls_that_samples_do_not_make_run() -> None:
    admitted = {guarded.operator_of(name) for name in guarded.admitted_operators()}
    for call in further_calls():
        call.run()
        assert call.operator in admitted


def test_what_the_farm_refuses_is_told_from_what_it_takes() -> None:
    assert guarded._decode(CONTRADICTING, plan=PLAN) == 1
    assert guarded._decode(FITTING, plan=PLAN) == 0


def test_what_kernels_believe_has_the_elements_of_the_farm(apart: Executor) -> None:
    believed = believed_inputs(job_of(SWAPPING))
    assert {number: each.tolist() for number, each in believed.items()} == {1: [1, 2, 3]}
    assert apart.submit(_outcomes, _swapping, None).result() == {PODS_OWN}
