"""Programs that write to what they hold, through the real farm: parameters and the state of optimizers."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
from torch import fx

from compilefarm.client import Farm, stats

from .serving import ServedFarm

pytestmark = pytest.mark.compiles


def _train(optimizer_type: Any, *, steps: int, backend: Any, **options: Any) -> tuple[list[torch.Tensor], list[Any]]:
    """Parameters and states after some steps with gradients of one."""
    torch.compiler.reset()
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


def _written_result(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    return (x * w).sin()


def _filled_cache(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    x[1:] = w[1:] * 3
    return x.sum(0) * w


def _written_without_gradients(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        x.add_(1)
    return x * w


@pytest.mark.parametrize("program", [_written_result, _filled_cache, _written_without_gradients])
@pytest.mark.parametrize("kind", ["result", "plain"])
def test_what_a_graph_writes_to_may_be_the_result_of_an_operator(program: Any, kind: str, farm: ServedFarm) -> None:
    """As activations and caches are; autograd refuses writes to leaves alone."""

    def run(function: Any) -> list[torch.Tensor]:
        base = torch.linspace(0.1, 1.0, 6).view(3, 2).requires_grad_()
        w = torch.linspace(-1.0, 1.0, 6).view(3, 2).requires_grad_()
        x = base * 1.5 if kind == "result" else base.detach() * 1.5
        out = function(x, w)
        # Two passes over one graph are none of a compiled one's.
        ((out * 0.5).sum() + (x.sum() if x.requires_grad else 0)).backward()
        return [out.detach(), x.detach(), *(each.grad for each in (base, w) if each.grad is not None)]

    torch.compiler.reset()
    before = len(stats())
    found = run(torch.compile(program, backend=Farm(farm.address).backend))
    assert [(record.outcome, record.message) for record in stats()[before:]] == [("compiled", "")]
    torch.testing.assert_close(found, run(program))


class _Holding(torch.nn.Module):
    """Holds small tensors that others may change without its being told."""

    def __init__(self) -> None:
        super().__init__()
        self.array = numpy.ones(3, dtype=numpy.float32)
        self.register_buffer("shared", torch.from_numpy(self.array))
        self.register_buffer("scale", torch.ones(3))
        self.plain = torch.ones(3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (x * self.scale + self.plain - self.shared * 2,)

    def change(self) -> None:
        self.array[:] = 5.0
        self.scale.data.fill_(3.0)  # type: ignore[union-attr]
        self.plain.data = torch.full((3,), 9.0)


class _Attributes(fx.Tracer):
    proxy_buffer_attributes = True


def test_what_others_change_in_a_graph_is_read_at_each_call(farm: ServedFarm) -> None:
    """As a local compile does it. Nothing tells of writes through `.data`, or in memory that NumPy shares."""
    held = _Holding()
    graph_module = fx.GraphModule(held, _Attributes().trace(held))
    x = torch.linspace(-1.0, 1.0, 3)
    program = Farm(farm.address).compile(graph_module, [x])
    assert stats()[-1].outcome == "compiled"
    torch.testing.assert_close(tuple(program(x)), held(x))
    held.change()
    torch.testing.assert_close(tuple(program(x)), held(x))


def test_what_others_change_in_a_module_is_read_at_each_call(farm: ServedFarm) -> None:
    held, x = _Holding(), torch.linspace(-1.0, 1.0, 3)
    program = torch.compile(held, backend=Farm(farm.address).backend)
    torch.testing.assert_close(program(x), held(x))
    held.change()
    torch.testing.assert_close(program(x), held(x))


def test_what_shares_memory_is_written_to_wherever_it_is(farm: ServedFarm) -> None:
    """Inductor alone writes to the places of the first call."""

    def smoothed(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        left.mul_(0.5).add_(right.mean())
        return left + right

    def run(function: Any, first: int, second: int) -> list[torch.Tensor]:
        whole = torch.arange(24.0)
        return [function(whole[first:][:6], whole[second:][:6]), whole]

    torch.compiler.reset()
    before = len(stats())
    compiled = torch.compile(smoothed, backend=Farm(farm.address).backend, dynamic=False)
    for first, second in ((0, 4), (0, 4), (3, 8), (12, 0), (4, 0)):
        torch.testing.assert_close(run(compiled, first, second), run(smoothed, first, second))
    assert [(record.outcome, record.name) for record in stats()[before:]] == [("compiled", "inference")]
    # The size that it has when Dynamo traces is guarded.
    resized = torch.compile(smoothed, backend=Farm(farm.address).backend, dynamic=True)
    torch.testing.assert_close(run(resized, 0, 4), run(smoothed, 0, 4))
    assert [(record.outcome, record.name) for record in stats()[before + 1 :]] == [("compiled", "inference")]
