"""Programs that write to what they hold, through the real farm: parameters and the state of optimizers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from compilefarm.client import Farm, stats

from .serving import ServedFarm

pytestmark = pytest.mark.compiles


def _train(optimizer_type: Any, *, steps: int, backend: Any, **options: Any) -> tuple[list[torch.Tensor], list[Any]]:
    """Parameters and states after some steps with gradients of one."""
    torch._dynamo.reset()
    parameters = [torch.nn.Parameter(torch.full((2, 3), 0.5)), torch.nn.Parameter(torch.zeros(2))]
    optimizer = optimizer_type(parameters, **options)
    step = torch.compile(optimizer.step, backend=backend)
    for _ in range(steps):
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        step()
    return [parameter.detach() for parameter in parameters], [optimizer.state[parameter] for parameter in parameters]


def test_momentum_is_kept_from_step_to_step(farm: ServedFarm) -> None:
    _, states = _train(torch.optim.SGD, steps=3, backend=Farm(farm.address).backend, lr=0.1, momentum=0.9, foreach=True)
    for state in states:
        torch.testing.assert_close(state["momentum_buffer"], torch.full_like(state["momentum_buffer"], 2.71))


def test_steps_are_counted_and_parameters_are_those_of_eager(farm: ServedFarm) -> None:
    expected, _ = _train(torch.optim.AdamW, steps=4, backend="eager", foreach=True)
    before = len(stats())
    parameters, states = _train(torch.optim.AdamW, steps=4, backend=Farm(farm.address).backend, foreach=True)
    assert {record.outcome for record in stats()[before:]} == {"compiled"}
    assert [state["step"].item() for state in states] == [4.0, 4.0]
    torch.testing.assert_close(parameters, expected)
