"""Kernels that nothing can be captured of without a GPU; in a file of their own, since Triton reads their source."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.autotune(
    configs=[triton.Config({"BLOCK": 64}, num_warps=2), triton.Config({"BLOCK": 256}, num_warps=8)],
    key=[],
    restore_value=["x_ptr"],
)
@triton.jit
def grow_kernel(x_ptr, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < count
    tl.store(x_ptr + offsets, tl.load(x_ptr + offsets, mask=inside) + 1, mask=inside)


def grown(x: torch.Tensor) -> torch.Tensor:
    """A kernel that is tuned on what it writes to: on a tensor of the graph, and on an input."""
    y = x * 2
    grow_kernel[lambda meta: (triton.cdiv(y.numel(), meta["BLOCK"]),)](y, y.numel())
    grow_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, x.numel())
    return y + x


@triton.jit
def tma_kernel(source, target, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0) * BLOCK
    target.store([row, 0], source.load([row, 0]) * 2)


def copied_by_tma(x: torch.Tensor) -> torch.Tensor:
    """A kernel that takes descriptors instead of pointers (Hopper and later)."""
    out = torch.empty_like(x)
    tma_kernel[(x.shape[0] // 16,)](
        TensorDescriptor.from_tensor(x, [16, 64]), TensorDescriptor.from_tensor(out, [16, 64]), BLOCK=16
    )
    return out.relu()
