"""A program of the farm that takes the place of an uncompiled graph while that is in use, held to eager."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from compilefarm.client import Farm, stats

from .serving import ServedFarm

pytestmark = pytest.mark.compiles

WEIGHT = torch.linspace(-1.0, 1.0, 64, dtype=torch.float64).view(8, 8).requires_grad_()


def model(x: torch.Tensor) -> torch.Tensor:
    return (x @ WEIGHT).tanh() * x.shape[0]


def rows(count: int) -> torch.Tensor:
    x = torch.linspace(-2.0, 2.0, count * 8, dtype=torch.float64).view(count, 8).requires_grad_()
    # dynamic=True changes settings of the process while a function runs: with torch 2.11 and several threads, for good.
    torch._dynamo.maybe_mark_dynamic(x, 0)
    return x


def gradients(result: torch.Tensor, x: torch.Tensor) -> Sequence[torch.Tensor]:
    return torch.autograd.grad(result.square().sum(), [x, WEIGHT])


def step(function: Callable[[torch.Tensor], torch.Tensor], *, count: int) -> list[torch.Tensor]:
    x = rows(count)
    result = function(x)
    return [result.detach(), *gradients(result, x)]


def step_within_a_step(function: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
    """A step whose backward calls the function again."""
    x, inner = rows(5), []

    def hook(gradient: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            inner.extend(step(function, count=3))
        return gradient * 2

    result = function(x)
    result.register_hook(hook)
    return [*gradients(result, x), *inner]


def test_results_and_gradients_are_those_of_eager_before_and_after(farm: ServedFarm) -> None:
    before = len(stats())
    compiled: Any = torch.compile(model, backend=Farm(farm.address, on_miss="eager").backend)
    x = rows(6)
    result = compiled(x)
    (waiting,) = (thread for thread in threading.enumerate() if thread.name == "program of the farm")
    expected = {count: step(model, count=count) for count in (2, 5, 9, 64)}

    def work(count: int) -> None:
        while waiting.is_alive():
            torch.testing.assert_close(step(compiled, count=count), expected[count])
            # The farm compiles on the same cores.
            waiting.join(timeout=0.02)
        for _ in range(5):
            torch.testing.assert_close(step(compiled, count=count), expected[count])

    with ThreadPoolExecutor(len(expected)) as pool:
        list(pool.map(work, expected))
    assert [(record.outcome, record.resort, record.reason) for record in stats()[before:]] == [("compiled", None, "")]
    # Its forward ran uncompiled.
    torch.testing.assert_close([result.detach(), *gradients(result, x)], step(model, count=6))
    torch.testing.assert_close(step_within_a_step(compiled), step_within_a_step(model))
    # The kernel that Inductor takes for matrices on CPUs is limited to 4,096 rows.
    torch.testing.assert_close(step(compiled, count=4097), step(model, count=4097))
