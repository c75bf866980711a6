"""Results of operators that Inductor calls, beside what fake tensors have said of them: what is generated goes by what
was said, in loops and in views.

Inductor asserts sizes and strides of such results, and with torch 2.15 dtypes, but passes whatever has no elements.
Loops go through some there, from address 0 on (torch/csrc/dynamo/guards.cpp: assert_size_stride). With torch 2.11 it
asserts nothing of what it takes to have no elements, and no dtypes.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any
from unittest import mock


@contextlib.contextmanager
def keeping_results_as_said() -> Iterator[None]:
    """Inside, no program is generated without an assertion on each tensor that an operator hands to it: that it has
    the dtype and the sizes by which the program was made. With the strides, which Inductor asserts where there are
    elements, its memory holds what the program reads.
    """
    kernel: Any = importlib.import_module("torch._inductor.ir").ExternKernel
    assert_sizes = kernel.codegen_size_asserts

    def assert_result(self: Any, wrapper: Any) -> None:
        assert_sizes(self, wrapper)
        # Torch 2.15 says nothing of what an operator makes of a tensor in place by viewing it otherwise.
        if not getattr(self, "is_inplace_view", bool)():
            _assert_as_said(self, wrapper)

    with mock.patch.object(kernel, "codegen_size_asserts", assert_result):
        yield


def _assert_as_said(result: Any, wrapper: Any) -> None:
    graph = importlib.import_module("torch._inductor.virtualized").V.graph
    name, size = result.get_name(), graph.wrapper_code.codegen_shape_tuple(result.get_size())
    conditions = [f"{name}.dtype is {result.get_dtype()}", f"{name}.shape == {size}"]
    # Kernels for GPUs are launched with no memory but a GPU's. Those for CPUs take any address for one of theirs.
    if result.get_device().type == "cpu" and graph.device_types - {"cpu", "meta"}:
        conditions.append(f"{name}.is_cpu")
    message = f"{result.get_op_name()} was to give {result.get_dtype()}{size}"
    wrapper.writeline(f"if not ({' and '.join(conditions)}):")
    wrapper.writeline(f"    raise RuntimeError({message!r})")
