"""What only a GPU has."""

from __future__ import annotations

import torch
from torch import nn

from tests.corpus.program import Case, Program, call, require_cuda, require_module

from .training import mlp


def _mlp() -> Case:
    device = require_cuda()
    return Case(function=mlp().to(device), calls=[call(torch.randn(4, 8, device=device))])


def _mixed_devices() -> Case:
    device = require_cuda()
    scale = torch.tensor(2.0)

    def function(x: torch.Tensor) -> torch.Tensor:
        return x * scale + torch.arange(4, device=x.device)

    return Case(function=function, calls=[call(torch.randn(4, device=device))])


def _half_precision() -> Case:
    device = require_cuda()
    model = nn.TransformerEncoderLayer(16, 2, dim_feedforward=32, batch_first=True).to(device, torch.bfloat16).eval()
    return Case(function=model, calls=[call(torch.randn(2, 8, 16, device=device, dtype=torch.bfloat16))])


def _user_kernel() -> Case:
    device = require_cuda()
    require_module("triton")
    from .triton_kernel import add

    return Case(function=add, calls=[call(torch.randn(300, device=device), torch.randn(300, device=device))])


PROGRAMS = (
    Program(name="gpu_mlp", build=_mlp),
    Program(name="gpu_mixed_devices", build=_mixed_devices),
    Program(name="gpu_half_precision", build=_half_precision),
    Program(name="gpu_user_triton_kernel", build=_user_kernel),
)
