"""Training loops of accelerate, which knows no backend by our name: the model is compiled before, or by a plugin."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.wild.program import Compiler, Program, require_module

_STEPS = 3


def _trains(compiler: Compiler, **options: Any) -> Any:
    # torch 2.11 compiles nothing of a class of its own that is compiled in place, as nn.Sequential is.
    model = _Stacked(nn.ModuleList([nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.LayerNorm(16))]))
    compiler.in_place(model)
    return _trained(model, compiler.device, **options)


def _trains_by_plugin(compiler: Compiler) -> Any:
    """Its repeated blocks are compiled, as the plugin says."""
    blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(3))
    require_module("accelerate")
    from compilefarm.client.accelerate import FarmPlugin

    # Without a compiler the plugin is asked all the same: what accelerate does with it is the program's own.
    how = {"disable": True} if compiler.backend is None else {"backend": compiler.backend}

    class Plugin(FarmPlugin):
        def to_kwargs(self) -> dict[str, Any]:
            return {**super().to_kwargs(), **how}

    plugin = Plugin(use_regional_compilation=True)
    return _trained(_Stacked(blocks), compiler.device, dynamo_plugin=plugin)


class _Stacked(nn.Module):
    def __init__(self, blocks: nn.ModuleList) -> None:
        super().__init__()
        self.blocks, self.head = blocks, nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        result: torch.Tensor = self.head(x)
        return result


def _trained(model: nn.Module, device: torch.device, **options: Any) -> Any:
    accelerate = require_module("accelerate")
    # What accelerate keeps for a process holds for one precision.
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = accelerate.Accelerator(cpu=device.type == "cpu", **options)
    inputs, targets = torch.randn(_STEPS, 8, 16), torch.randint(0, 4, (_STEPS, 8))
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    losses = []
    for step in range(_STEPS):
        with accelerator.accumulate(model):
            given, target = inputs[step].to(accelerator.device), targets[step].to(accelerator.device)
            loss = nn.functional.cross_entropy(model(given), target)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
    return losses, [weight.detach() for weight in model.parameters()]


PROGRAMS = (
    Program(name="training", run=_trains, training=True),
    Program(
        name="training in bfloat16",
        run=lambda compiler: _trains(compiler, mixed_precision="bf16"),
        training=True,
        precision=torch.bfloat16,
    ),
    Program(
        name="gradients of two steps",
        run=lambda compiler: _trains(compiler, gradient_accumulation_steps=2),
        training=True,
    ),
    Program(name="training, compiled by the plugin", run=_trains_by_plugin, training=True),
)
