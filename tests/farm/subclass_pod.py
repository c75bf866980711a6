"""A pod without a compiler: trains a model with a weight of a subclass, and says what it saw as JSON."""

from __future__ import annotations

import json
import sys

import torch
from torch.testing._internal.two_tensor import TwoTensor

from compilefarm.client import stats

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.LayerNorm(8))
model[0].weight = torch.nn.Parameter(TwoTensor(torch.randn(8, 8), torch.randn(8, 8)))
x = torch.randn(4, 8)


def step(program: torch.nn.Module) -> list[torch.Tensor]:
    """One step: halves of the result, and of what each parameter is told."""
    model.zero_grad()
    result = program(x)
    result.square().sum().backward()
    return [half.detach() for each in (result, *(p.grad for p in model.parameters())) for half in (each.a, each.b)]


expected = step(model)
found = step(torch.compile(model, backend="compilefarm"))
compiler = [name for name in ("compile_fx", "ir", "lowering", "scheduler") if f"torch._inductor.{name}" in sys.modules]
difference = max((ours - theirs).abs().max().item() for ours, theirs in zip(found, expected, strict=True))
print(json.dumps({"outcomes": [each.outcome for each in stats()], "difference": difference, "compiler": compiler}))
