"""Assertions on indices under a mask, in what Inductor generates for vectors on CPUs: they can fail.

Where one index is for a whole vector, as that of a row is, torch asserts it `| ~(mask)`
(torch/_inductor/codegen/common.py: Kernel.indirect_assert). Masks of such assertions are of type bool there, and in
C++ `~` makes a number of a bool that is never 0, so nothing was asserted. And it asks whether the mask is set for every
element (codegen/cpp.py: CppVecKernel.indirect_assert), where one is enough for a load.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch


@contextlib.contextmanager
def keeping_masked_assertions() -> Iterator[None]:
    """Inside, indices under a mask are asserted wherever it is set for any element."""
    cpp: Any = importlib.import_module("torch._inductor.codegen.cpp")
    check = cpp.CppVecKernel.indirect_assert

    def check_masked(self: Any, var: Any, lower: Any, upper: Any, mask: Any = None) -> str:
        if mask is not None and not mask.is_vec:
            # What is under a mask of one element runs only where it is set.
            mask = None
        elif mask is not None and not var.is_vec:
            if self.tail_size is not None:
                kind, count = self._get_mask_type(torch.float), cpp.cexpr_index(self.tail_size)
                # It may be one of other elements, as of indices, of which a vector holds fewer.
                mask = f"{kind}::set({kind}::from(0), {self._get_mask_cast(mask, torch.float)}, {count})"
            # As a number of which every bit is the mask's.
            mask = f"-static_cast<int>(!({mask}).all_zero())"
        line: str = check(self, var, lower, upper, mask)
        return line

    with mock.patch.object(cpp.CppVecKernel, "indirect_assert", check_masked):
        yield
