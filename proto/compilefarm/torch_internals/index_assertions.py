"""Indices in what Inductor generates: whatever is read or written by an index that a graph computes is asserted to lie
within its tensor.

Inductor leaves assertions out where it has proven that they hold, with integers that know no end
(torch/_inductor/index_propagation.py, codegen/common.py). Machines have 64 bits. With torch 2.11 it takes a negative
index for proven where none is counted from the end. It leaves them out of its own operators, too (lowering.py:
check=False): resizing finds its places in floating point of 32 bits, which rounds the last of many to one that there is
not. Nor does it assert an index that is an element of a tensor, where the graph selects by it (codegen/wrapper.py:
codegen_dynamic_select_index). Of regions of fractional pooling it asserts where they begin, and not that they end
within the image (lowering.py: _fractional_pooling_offsets).
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import sympy
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from compilefarm.torch_internals.asserted_results import keeping_results_as_said
from compilefarm.torch_internals.block_mask_assertions import keeping_block_masks_in_bounds
from compilefarm.torch_internals.booleans import keeping_booleans_binary
from compilefarm.torch_internals.masked_assertions import keeping_masked_assertions
from compilefarm.torch_internals.masked_loads import keeping_masked_loads_short

# Far from 64 bits, and beyond what any tensor has.
_LARGEST = 2**62
# No loop has more steps than tensors have elements.
_MOST_STEPS = 2**44
_WRAPPING = "fwrapv"


@contextlib.contextmanager
def keeping_index_assertions() -> Iterator[None]:
    """Inside, no program is generated without assertions on indices that it computes."""
    propagation: Any = importlib.import_module("torch._inductor.index_propagation")
    common: Any = importlib.import_module("torch._inductor.codegen.common")
    wrapper: Any = importlib.import_module("torch._inductor.codegen.wrapper").PythonWrapperCodegen
    lowering: Any = importlib.import_module("torch._inductor.lowering")
    begin_regions = lowering._fractional_pooling_offsets
    select = wrapper.codegen_dynamic_select_index
    fold = propagation.IndexPropagation.indirect_indexing
    generate = common.CSEProxy.indirect_indexing

    # Whatever they say of `check`.
    def fold_proven(self: Any, index: Any, size: Any, check: bool = True, wrap_neg: bool = True) -> Any:  # noqa: ARG001
        if isinstance(index, propagation.IndexPropVar) and index.is_symbolic:
            expression = sympy.sympify(index.value.expr)
            if _may_overflow(self, expression) or not (wrap_neg or self.statically_true(expression >= 0)):
                index = self.unwrap(index)
        return fold(self, index, size, True, wrap_neg)

    def generate_asserted(self: Any, var: Any, size: Any, check: bool = True, wrap_neg: bool = True) -> Any:  # noqa: ARG001
        # Of values that are not loaded bounds are known, as if nothing overflowed.
        var.bounds = ValueRanges.unknown()
        return generate(self, var, size, True, wrap_neg)

    def select_asserted(self: Any, node: Any, clamp: bool) -> None:
        if not clamp:
            _assert_within(self, node.index, size=node.size)
        select(self, node, clamp)

    def begin_regions_within(*, in_sz: Sequence[Any], kernel_sz: Sequence[Any], **given: Any) -> Any:
        # Regions of one element of an image without what follows the last place where one begins, begin there, too.
        places = [size - region + 1 for size, region in zip(in_sz, kernel_sz, strict=True)]
        return begin_regions(in_sz=places, kernel_sz=[1] * len(places), **given)

    with (
        mock.patch.object(lowering, "_fractional_pooling_offsets", begin_regions_within),
        mock.patch.object(wrapper, "codegen_dynamic_select_index", select_asserted),
        mock.patch.object(propagation.IndexPropagation, "indirect_indexing", fold_proven),
        mock.patch.object(common.CSEProxy, "indirect_indexing", generate_asserted),
        keeping_block_masks_in_bounds(),
        keeping_booleans_binary(),
        keeping_masked_assertions(),
        keeping_masked_loads_short(),
        keeping_results_as_said(),
    ):
        yield


def _assert_within(wrapper: Any, index: Any, *, size: Any) -> None:
    # As torch/_inductor/ir.py: AssertScalar does it.
    for condition in (sympy.Ge(index, -size), sympy.Lt(index, size)):
        wrapper.writeline(f"if not ({wrapper.codegen_python_sizevar(condition, simplify=False)}):")
        wrapper.writeline(f"    raise RuntimeError({str(condition)!r})")


def _may_overflow(propagation: Any, expression: Any) -> bool:
    """Whether a part of an index may go beyond what 64 bits hold. Of numbers that differ from call to call only their
    guards are known.
    """
    of_shapes = propagation.shape_env.var_to_range
    steps = {symbol: bounds.upper for symbol, bounds in propagation.var_to_range if symbol not in of_shapes}
    ranges = {symbol: _counted(last) for symbol, last in (steps | propagation.indirect_var_ranges).items()}
    parts = (part for part in sympy.preorder_traversal(sympy.sympify(expression)) if part.args)
    return any(_is_large(part, ranges) for part in parts if isinstance(part, sympy.Expr))


def _counted(last: Any) -> Any:
    upper = bound_sympy(sympy.sympify(last)).upper
    return ValueRanges(0, upper if upper < _MOST_STEPS else _MOST_STEPS)


def _is_large(part: sympy.Expr, ranges: Mapping[sympy.Symbol, Any]) -> bool:
    bounds = bound_sympy(part, dict(ranges))
    return not (bounds.lower >= -_LARGEST and bounds.upper <= _LARGEST)


def wrap_integers() -> None:
    """For the rest of this process, has C++ compiled so that integers that overflow wrap: a compiler may assume that
    none does, and leave out assertions that follow from it."""
    builder: Any = importlib.import_module("torch._inductor.cpp_builder")
    original = builder._get_optimization_cflags
    if getattr(original, "compilefarm", False):
        return

    def flags(*args: Any, **kwargs: Any) -> tuple[list[str], list[str]]:
        compiling, linking = original(*args, **kwargs)
        return [*compiling, _WRAPPING], linking

    flags.compilefarm = True  # type: ignore[attr-defined]
    builder._get_optimization_cflags = flags
