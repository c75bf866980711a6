"""Booleans in what Inductor generates for CPUs: whatever lies in memory, each is false or true.

In C++ no bool is other than 0 and 1: a compiler leaves out the assertion on an index made of one. Inductor loads the
bytes of a tensor of booleans as such (torch/_inductor/codegen/cpp.py: CppKernel.load), and takes the bits of a byte for
those of a bool (CppOverrides.to_dtype_bitcast). But there are others in memory that nobody has written, as of
`torch.empty_permuted`, and in tensors that a request brings. Torch's own operators compare bytes with zero
(c10/util/Load.h), and so it is done here.
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
    """Inside, what is loaded or viewed as a boolean is compared with zero."""
    cpp: Any = importlib.import_module("torch._inductor.codegen.cpp")
    virtualized: Any = importlib.import_module("torch._inductor.virtualized").V
    kernel, vectors = cpp.CppKernel, cpp.CppVecKernel
    load, load_vector, load_spread = kernel.load, vectors._get_vec_load_line, vectors._load_or_store_non_contiguous

    def load_one(self: Any, name: str, index: Any) -> Any:
        if virtualized.graph.get_dtype(name) is not torch.bool:
            return load(self, name, index)
        # As `load`, but for the line.
        index = self.rename_indexing(index)
        line = f"({bytes_at(self.args.input(name))}[{cpp.cexpr_index(index)}] != 0)"
        loaded = self.cse.generate(self.loads, line, dtype=torch.bool)
        loaded.update_on_args("load", (self, name, index), {})
        return loaded

    def load_row(self: Any, var: str, index: Any, dtype: torch.dtype, load_mask: Any = None) -> str:
        line: str = load_vector(self, bytes_at(var) if dtype is torch.bool else var, index, dtype, load_mask)
        return line

    def load_column(
        self: Any,
        var: str | None,
        index: Any,
        dtype: torch.dtype,
        buffer: Any = None,
        store_value: Any = None,
        **more: Any,
    ) -> Any:
        if var is not None and dtype is torch.bool and not store_value:
            var = bytes_at(var)
        return load_spread(self, var, index, dtype, buffer, store_value, **more)

    with (
        mock.patch.object(kernel, "load", load_one),
        mock.patch.object(vectors, "_get_vec_load_line", load_row),
        mock.patch.object(vectors, "_load_or_store_non_contiguous", load_column),
        _viewing_binary(cpp),
    ):
        yield


@contextlib.contextmanager
def _viewing_binary(cpp: Any) -> Iterator[None]:
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


def bytes_at(var: str) -> str:
    """A pointer to booleans as one to bytes, which are as long."""
    return f"reinterpret_cast<const uint8_t*>({var})"
