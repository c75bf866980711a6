"""PyTorch's own samples for its operators."""

from __future__ import annotations

import functools
import sys
import unittest
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any
from unittest import mock

import torch

_LISTS = ("unary", "binary", "pointwise", "reduce", "other")


@contextmanager
def _standing_in_for_expecttest() -> Iterator[None]:
    """Torch's tests compare with texts by it; samples do not."""
    stands_in = ModuleType("expecttest")
    stands_in.TestCase = unittest.TestCase  # type: ignore[attr-defined]
    is_missing = sys.modules.setdefault("expecttest", stands_in) is stands_in
    try:
        yield
    finally:
        if is_missing:
            del sys.modules["expecttest"]


def _samples() -> Any:
    """torch/testing/_internal/common_methods_invocations.py. Importing it takes many seconds."""
    # Others of this process set flags of torch.backends.
    with _standing_in_for_expecttest(), mock.patch.object(torch.backends, "disable_global_flags"):
        from torch.testing._internal import common_methods_invocations

    return common_methods_invocations


@contextmanager
def drawing_numbers() -> Iterator[None]:
    """Has operators that draw random numbers do just that. Torch's own samples set the seed before each call, which
    cannot be part of a graph.
    """

    def call(operator: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return operator(*args, **kwargs)

    with mock.patch.object(_samples(), "wrapper_set_seed", call):
        yield


@functools.cache
def operators() -> Sequence[Any]:
    """Operators on tensors."""
    return tuple(_samples().op_db)


@functools.cache
def foreach_operators() -> Sequence[Any]:
    """Operators on lists of tensors."""
    return tuple(info for kind in _LISTS for info in getattr(_samples(), f"foreach_{kind}_op_db"))
