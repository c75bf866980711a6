"""A pod: compiles programs on a farm and prints what each gave, what it gives without, and what became of its graph.

Arguments: the address of the farm, then names of programs.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any

import torch

from compilefarm.client import Farm, stats


def operator(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    importlib.import_module(f"wrong_hits_library.operators.{name}")
    return lambda x: getattr(torch.ops.wrong_hits_library, name)(x * 1) + 1


def casting(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu"):
        return x @ x


def contraction(x: torch.Tensor) -> torch.Tensor:
    # From the left it overflows.
    large = torch.full((16, 16), 1e20)
    return torch.einsum("ij,jk,kl->il", large, large + x[0, 0], torch.full((16, 1), 1e-20))


def make(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    if name == "casting":
        torch.set_autocast_dtype("cpu", getattr(torch, os.environ.get("AUTOCAST", "bfloat16")))
        return casting
    if name == "contraction":
        torch.backends.opt_einsum.enabled = "LEFT_TO_RIGHT" not in os.environ  # type: ignore[assignment]
        return contraction
    return operator(name)


def result_of(function: Callable[[torch.Tensor], torch.Tensor], *, with_gradient: bool) -> list[Any]:
    x = torch.ones(4, 4, requires_grad=with_gradient)
    result = function(x)
    if with_gradient:
        result.sum().backward()
    gradient = x.grad.sum().item() if x.grad is not None else None
    # Kernels and eager add in two orders.
    return [str(result.dtype), f"{result.double().sum().item():.4g}", gradient]


farm, seen = Farm(sys.argv[1]), {}
for name in sys.argv[2:]:
    program = make(name)
    torch.compiler.reset()
    before = len(stats())
    ours = result_of(torch.compile(program, backend=farm.backend, fullgraph=True), with_gradient=name == "gradient")
    seen[name] = {
        "farm": ours,
        "eager": result_of(program, with_gradient=name == "gradient"),
        "outcomes": [record.outcome for record in stats()[before:]],
        "messages": [record.message for record in stats()[before:]],
    }
print(json.dumps(seen))
