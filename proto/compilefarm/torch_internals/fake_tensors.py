"""Tensors without elements, on which torch finds out what operators would return."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import (  # torch/_subclasses/fake_tensor.py
    FakeTensor,
    FakeTensorMode,
)
from torch._subclasses.fake_tensor import unset_fake_temporarily as leaving_fake_mode

__all__ = ["FakeTensor", "FakeTensorMode", "is_dense", "leaving_fake_mode"]


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements of a tensor fill its memory, without gaps and each in a place of its own.

    A size that nobody knows counts as one with which they do not.
    """
    # torch/_prims_common/__init__.py
    return bool(torch._prims_common.is_non_overlapping_and_dense_or_false(tensor))
