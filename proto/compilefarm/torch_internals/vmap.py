"""Where torch.vmap puts the dimension of a batch in a result that has nothing of the batch.

Torch 2.11 inserts it into the list of sizes wherever it is told to, also beyond that list (aten/src/ATen/functorch,
torch/csrc/functorch/init.cpp: _remove_batch_dim): a graph that said so had memory written at a place of its choice.
Later releases hold it against the dimensions that there are, and so it is done here for all of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._C._functorch import is_batchedtensor, maybe_get_level  # torch/csrc/functorch/init.cpp
from torch._functorch import predispatch  # torch/_functorch/predispatch.py

# What predispatch._remove_batch_dim calls, which graphs and torch.vmap itself do.
_NAME = "_remove_batch_dim_impl"


@functools.cache
def bound_places() -> None:
    """Bounds such places for the rest of this process."""
    setattr(predispatch, _NAME, _bounded(getattr(predispatch, _NAME)))


@contextmanager
def bounding_places() -> Iterator[None]:
    """Bounds such places inside."""
    unbounded = getattr(predispatch, _NAME)
    setattr(predispatch, _NAME, _bounded(unbounded))
    try:
        yield
    finally:
        setattr(predispatch, _NAME, unbounded)


def _bounded(remove: Callable[..., Any]) -> Callable[..., Any]:
    def remove_bounded(self: torch.Tensor, level: int, batch_size: int, out_dim: int) -> Any:
        return remove(self, level, batch_size, _place(self, level=level, out_dim=out_dim))

    return remove_bounded


def _place(tensor: torch.Tensor, *, level: int, out_dim: int) -> int:
    if is_batchedtensor(tensor) and maybe_get_level(tensor) >= level:
        # It is moved there, and torch looks where that is.
        return out_dim
    most: int = tensor.dim()
    # Of one that a graph computes, where it is in the call at hand, with a guard.
    place = int(out_dim)
    if not -most - 1 <= place <= most:
        # As later releases say it.
        raise IndexError(f"Dimension out of range (expected to be in range of [{-most - 1}, {most}], but got {place})")
    return place % (most + 1)
