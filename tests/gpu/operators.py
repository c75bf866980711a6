"""An operator of a library that may not be recorded; workers have it by `serve --import tests.gpu.operators`."""

from __future__ import annotations

import torch


@torch.library.custom_op(
    "compilefarm_gpu_tests::largest", mutates_args=(), tags=(torch.Tag.cudagraph_unsafe,), device_types="cuda"
)
def largest(x: torch.Tensor) -> torch.Tensor:
    """The largest element, by way of the CPU: CUDA permits no wait for the GPU while a stream is captured."""
    return x.max().cpu().to(x.device)


@largest.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(())
