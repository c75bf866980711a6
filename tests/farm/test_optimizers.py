"""Steps of optimizers whose learning rate a scheduler changes, on the real farm, beside the same uncompiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import SGD, AdamW, Optimizer, RMSprop
from torch.optim.lr_scheduler import ExponentialLR

from compilefarm.client import Farm, stats

from .serving import ServedFarm

pytestmark = pytest.mark.compiles
Make = Callable[[list[torch.nn.Parameter]], Optimizer]
MAKES: dict[str, Make] = {
    "AdamW": lambda weights: AdamW(weights, lr=0.1, foreach=True),
    "AdamW, a tensor for the rate": lambda weights: AdamW(weights, lr=torch.tensor(0.1)),
    "SGD": lambda weights: SGD(weights, lr=0.1, momentum=0.9, nesterov=True),
    "RMSprop": lambda weights: RMSprop(weights, lr=0.1, foreach=False),
}


def trained(make: Make, *, steps: int, backend: Any) -> list[torch.Tensor]:
    torch.compiler.reset()
    torch.manual_seed(0)
    weights = [torch.nn.Parameter(torch.randn(*shape)) for shape in ((4, 6), (6,))]
    optimizer = make(weights)
    scheduler = ExponentialLR(optimizer, gamma=0.8)
    step = optimizer.step if backend is None else torch.compile(optimizer.step, backend=backend)
    for number in range(steps):
        for weight in weights:
            weight.grad = torch.sin(weight.detach() * (number + 1))
        step()
        scheduler.step()
    return [weight.detach() for weight in weights]


@pytest.mark.parametrize("name", MAKES)
def test_steps_are_those_of_the_uncompiled_optimizer(farm: ServedFarm, name: str) -> None:
    before = len(stats())
    ours = trained(MAKES[name], steps=6, backend=Farm(farm.address).backend)
    torch.testing.assert_close(ours, trained(MAKES[name], steps=6, backend=None))
    outcomes = [record.outcome for record in stats()[before:]]
    # One for the first rate and one for all others, not one for each.
    assert 1 <= len(outcomes) <= 3
    assert set(outcomes) <= {"compiled", "hit"}
