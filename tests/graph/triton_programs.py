"""Kernels as users write them; in a file of their own, since Triton reads their source."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language import load
from triton.language.extra import libdevice

FACTOR = tl.constexpr(3)
ACCUMULATOR = tl.constexpr(tl.float32)


@triton.constexpr_function
def half(size):  # type: ignore[no-untyped-def]
    return size // 2


@triton.jit
def scaled(x):  # type: ignore[no-untyped-def]
    # What no key should depend on.
    return (x.to(ACCUMULATOR) * FACTOR).to(x.dtype)


@triton.jit
def _offsets(BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """x + 3 y."""
    offsets = _offsets(BLOCK)
    inside = offsets < count
    y = scaled(load(y_ptr + offsets, mask=inside))
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=inside) + y, mask=inside)


@triton.autotune(
    configs=[triton.Config({"BLOCK": 64}, num_warps=2), triton.Config({"BLOCK": 256}, num_warps=8, num_stages=2)],
    key=["count"],
    reset_to_zero=["out_ptr"],
)
@triton.jit(do_not_specialize=["count"])
def tuned_kernel(x_ptr, out_ptr, count, BLOCK: tl.constexpr, DTYPE: tl.constexpr):  # type: ignore[no-untyped-def]
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, half(2 * BLOCK))
    inside = offsets < count
    x = tl.load(x_ptr + offsets, mask=inside).to(DTYPE)
    tl.store(out_ptr + offsets, libdevice.exp(x), mask=inside)


@triton.jit
def swap_kernel(x_ptr, y_ptr, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < count
    x = tl.load(x_ptr + offsets, mask=inside)
    y = tl.load(y_ptr + offsets, mask=inside)
    tl.store(x_ptr + offsets, y, mask=inside)
    tl.store(y_ptr + offsets, x, mask=inside)


def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A plain kernel, which calls another function and refers to constants, with something around it."""
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(x.numel(), 128),)](x, y, out, x.numel(), BLOCK=128)
    return out.relu() + 1


def tuned(x: torch.Tensor) -> torch.Tensor:
    """A kernel that is tuned, with a grid for each of its configurations."""
    out = torch.empty_like(x)
    tuned_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, out, x.numel(), DTYPE=tl.float32)
    return out * 2


def swapped(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A kernel that writes to two tensors, launched twice, once with an option of Triton's."""
    x, y = x + 1, y * 2
    swap_kernel[(1, 1)](x, y, x.numel(), BLOCK=512)
    add_kernel[(triton.cdiv(x.numel(), 128),)](x, y, x, x.numel(), BLOCK=128, num_warps=2)
    return x, y


class Tripled(torch.autograd.Function):
    """A function whose forward and backward are kernels."""

    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        out = torch.empty_like(x)
        add_kernel[(triton.cdiv(x.numel(), 128),)](torch.zeros_like(x), x, out, x.numel(), BLOCK=128)
        return out

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        out = torch.empty_like(gradient)
        add_kernel[(triton.cdiv(out.numel(), 128),)](
            torch.zeros_like(out), gradient.contiguous(), out, out.numel(), BLOCK=128
        )
        return out


def tripled(x: torch.Tensor) -> torch.Tensor:
    """Kernels within the subgraphs of a higher-order operator."""
    out: torch.Tensor = Tripled.apply(x)
    return out.sin()
