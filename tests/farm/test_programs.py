"""What Dynamo makes of more than straight inference, through the real farm, beside the same compiled locally."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from compilefarm.client import Farm, stats

from .serving import ServedFarm

pytestmark = pytest.mark.compiles


def outcomes(farm: ServedFarm, work: Callable[[Any], Any]) -> tuple[Any, list[str | None]]:
    """What `work` gives when it is handed the farm's backend, and what became of its graphs."""
    torch._dynamo.reset()
    before = len(stats())
    result = work(Farm(farm.address).backend)
    return result, [record.outcome for record in stats()[before:]]


def locally(work: Callable[[Any], Any]) -> Any:
    torch._dynamo.reset()
    return work("inductor")


def test_a_training_step_has_the_gradients_of_a_local_compile(farm: ServedFarm) -> None:
    def step(backend: Any) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(12, 24), torch.nn.BatchNorm1d(24), torch.nn.ReLU(), torch.nn.Dropout(0.25)
        )
        compiled = torch.compile(model, backend=backend, fullgraph=True)
        x = torch.rand(8, 12)
        torch.manual_seed(7)
        loss = compiled(x).square().sum()
        loss.backward()
        running = [buffer.clone() for buffer in model.buffers()]
        return [loss.detach(), *(parameter.grad for parameter in model.parameters()), *running]  # type: ignore[list-item]

    theirs = locally(step)
    for expected in ("compiled", "hit"):
        ours, became = outcomes(farm, step)
        assert became == [expected]
        torch.testing.assert_close(ours, theirs)


def test_an_optimizer_changes_the_parameters_that_its_graph_holds(farm: ServedFarm) -> None:
    def steps(backend: Any) -> list[torch.Tensor]:
        weights = [torch.nn.Parameter(torch.full((5,), value)) for value in (1.0, 2.0)]
        optimizer = torch.optim.SGD(weights, lr=0.5, momentum=0.9)
        compiled = torch.compile(optimizer.step, backend=backend, fullgraph=False)
        for _ in range(3):
            for weight in weights:
                weight.grad = weight.detach() * 0.1
            compiled()
        return [weight.detach() for weight in weights]

    ours, became = outcomes(farm, steps)
    assert became
    assert set(became) <= {"compiled", "hit"}
    torch.testing.assert_close(ours, locally(steps))


def test_branches_loops_and_autocast(farm: ServedFarm) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = (x @ x).float()
        y = torch.cond(y.sum() > 0, lambda z: z.sin() + 1, lambda z: z.cos(), (y,))
        return torch.vmap(lambda row: row * row.sum())(y)

    x = torch.rand(6, 6)

    def work(backend: Any) -> list[torch.Tensor]:
        compiled = torch.compile(program, backend=backend, fullgraph=True)
        with torch.no_grad():
            return [compiled(x), compiled(-x @ x)]

    ours, became = outcomes(farm, work)
    assert became == ["compiled"]
    torch.testing.assert_close(ours, locally(work))
