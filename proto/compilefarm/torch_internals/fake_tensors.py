"""Tensors without elements, on which torch finds out what operators would return."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch._subclasses.fake_tensor import (  # torch/_subclasses/fake_tensor.py
    FakeTensor,
    FakeTensorMode,
)
from torch._subclasses.fake_tensor import unset_fake_temporarily as leaving_fake_mode

from compilefarm.torch_internals.pytrees import iterate_leaves

__all__ = ["FakeTensor", "FakeTensorMode", "constants_of", "forget_constants", "is_dense", "leaving_fake_mode"]


def constants_of(values: object) -> list[torch.Tensor]:
    """The tensors in memory that torch computes with in the place of fake ones, if it knows all of these; else none.

    Args:
        values: fake tensors among others, in lists, tuples and dictionaries.
    """
    constants = [tensor.constant for tensor in _fake_tensors(values)]
    known = [constant for constant in constants if constant is not None]
    return known if len(known) == len(constants) else []


def forget_constants(values: object) -> None:
    """Has torch know of fake tensors no more than of any others, and of those that share their memory."""
    for tensor in _fake_tensors(values):
        if tensor.constant is not None:
            tensor.fake_mode.fake_tensor_converter.invalidate_constant_aliases(tensor.constant)
            tensor.constant = None


def _fake_tensors(values: object) -> Iterator[FakeTensor]:
    return (leaf for leaf in iterate_leaves(values) if isinstance(leaf, FakeTensor))


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements of a tensor fill its memory, without gaps and each in a place of its own.

    A size that nobody knows counts as one with which they do not.
    """
    # torch/_prims_common/__init__.py
    return bool(torch._prims_common.is_non_overlapping_and_dense_or_false(tensor))
