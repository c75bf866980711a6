"""Masked loads in what Inductor generates for CPUs: none goes beyond the last step of its loop.

Where a loop ends within a vector, Inductor loads as many elements as are left, but not where they are masked, as in
padding: then it loads a whole vector, and of booleans also what the mask leaves out
(torch/_inductor/codegen/cpp.py: CppVecKernel._get_vec_load_line). That reads up to a vector beyond the tensor. Nothing
becomes of the values, but memory may end there.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch

from compilefarm.torch_internals.booleans import bytes_at

_LOAD = ".template loadu<"


@contextlib.contextmanager
def keeping_masked_loads_short() -> Iterator[None]:
    """Inside, masked loads are generated with a mask that ends where the loop does."""
    cpp: Any = importlib.import_module("torch._inductor.codegen.cpp")
    load = cpp.CppVecKernel._get_vec_load_line

    def load_short(self: Any, var: str, index: Any, dtype: torch.dtype, load_mask: Any = None) -> str:
        if load_mask is None or (self.tail_size is None and dtype is not torch.bool):
            line: str = load(self, var, index, dtype, load_mask)
            return line
        kind, count = self._get_mask_type(torch.float), cpp.cexpr_index(self.num_elems)
        # As bytes: of booleans torch makes a mask, whatever masks them.
        if is_mask := dtype is torch.bool:
            var, dtype = bytes_at(var), torch.uint8
        line = load(self, var, index, dtype, load_mask)
        mask, found, loaded = line.partition(_LOAD)
        assert found, line
        short = f"{kind}::set({kind}::from(0), {mask}, {count}){found}"
        return f"{kind}::from(at::vec::VectorizedN<uint8_t,1>({short}{loaded}))" if is_mask else short + loaded

    with mock.patch.object(cpp.CppVecKernel, "_get_vec_load_line", load_short):
        yield
