"""Bytes that are viewed as booleans, in what Inductor generates for CPUs: each is false or true.

Inductor takes the bits of a byte for those of a bool (torch/_inductor/codegen/cpp.py: CppOverrides.to_dtype_bitcast).
In C++ no bool is other than 0 and 1: a compiler leaves out the assertion on an index made of one, whatever the byte is.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch


@contextlib.contextmanager
def keeping_booleans_binary() -> Iterator[None]:
    """Inside, a byte that is viewed as a boolean is compared with zero, as torch's own operators do."""
    cpp: Any = importlib.import_module("torch._inductor.codegen.cpp")
    scalars, vectors = cpp.CppOverrides, cpp.CppVecOverrides
    view = scalars.to_dtype_bitcast

    # By its name torch knows what type the results have, where it goes through the elements of a vector.
    def to_dtype_bitcast(x: Any, dtype: torch.dtype, src_dtype: torch.dtype) -> str:
        if dtype is torch.bool:
            return f"(c10::bit_cast<uint8_t>({x}) != 0)"
        bits: str = view(x, dtype, src_dtype)
        return bits

    with (
        mock.patch.object(scalars, "to_dtype_bitcast", staticmethod(to_dtype_bitcast)),
        mock.patch.object(vectors, "to_dtype_bitcast", staticmethod(vectors._scalarize(to_dtype_bitcast))),
    ):
        yield
