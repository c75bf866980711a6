"""Training loops of accelerate, which knows no back end by our name: the model is compiled before."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.wild.program import Compiler, Program, require_module

_STEPS = 3


def _trains(compiler: Compiler, **options: Any) -> Any:
    accelerate = require_module("accelerate")
    # What accelerate keeps for a process holds for one precision.
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = accelerate.Accelerator(cpu=compiler.device.type == "cpu", **options)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))
    inputs, targets = torch.randn(_STEPS, 8, 16), torch.randint(0, 4, (_STEPS, 8))
    compiler.in_place(model)
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
)
