"""Runs a graph with products of float32 in the narrowest precision that the settings of the process allow.

Eager and Inductor each choose kernels for themselves. Where TF32 is allowed, one may take it for a convolution that the
other computes in float32, and both are right: what TF32 leaves of a result is found out by rounding operands to it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from compilefarm.graph.fp32_precision import Product, narrow_precisions
from compilefarm.graph.tolerances import coarsest
from compilefarm.torch_internals.operators import HigherOrderOperator, OpOverload, schema_of
from compilefarm.worker.reference import InsideMode, results_within
from compilefarm.worker.results import Results

# By what multiplies below autograd, and what its name contains.
_PRODUCTS = {"convolution": Product.CONVOLUTION, "_rnn": Product.RECURRENT, "attention": Product.MATMUL}
_MATMULS = frozenset({"addbmm", "addmm", "addmv", "baddbmm", "bmm", "linear", "mm", "mv", "_addmm_activation",
                      "_grouped_mm", "_trilinear"})  # fmt: skip
# The mantissa of float32 has 13 bits more than that of TF32. Tensor cores drop them.
_KEPT_BY_TF32 = ~0x1FFF


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrowed:
    """Results of a graph with narrow products.

    Attributes:
        results: the results by name.
        dtype: a dtype with the precision of the coarsest of these products.
    """

    results: Results
    dtype: torch.dtype


class Narrowing(InsideMode):
    """Rounds operands of products to the precisions that are allowed.

    Attributes:
        applied: the precisions that something was rounded to.
    """

    def __init__(self) -> None:
        super().__init__()
        self._precisions = {is_cuda: narrow_precisions(is_cuda=is_cuda) for is_cuda in (False, True)}
        self.applied: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, HigherOrderOperator):
            args, kwargs = self.entering((args, kwargs))
        product = _product(func)
        if product is None:
            return func(*args, **kwargs)
        written = set(_written(func))
        narrowed = [each if position in written else self._narrow(each, product) for position, each in enumerate(args)]
        named = {name: each if name in written else self._narrow(each, product) for name, each in kwargs.items()}
        return func(*narrowed, **named)

    def _narrow(self, given: Any, product: Product) -> Any:
        # What has one dimension is a bias.
        if not isinstance(given, torch.Tensor) or given.dtype != torch.float32 or given.dim() < 2:
            return given
        dtype = self._precisions[given.is_cuda].get(product)
        if dtype is None:
            return given
        self.applied.add(dtype)
        return _rounded(given, dtype)


def find_narrowed(run: Callable[[], Results]) -> Narrowed | None:
    """Results of a graph with narrow products; None where the settings allow none, or the graph has none.

    Args:
        run: runs the graph, each time on the same inputs.
    """
    if not any(narrow_precisions(is_cuda=is_cuda) for is_cuda in (False, True)):
        return None
    mode = Narrowing()
    results = results_within(mode, run, what="narrow products")
    dtype = coarsest(mode.applied)
    return Narrowed(results=results, dtype=dtype) if results is not None and dtype is not None else None


def _rounded(operand: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.float16:
        return operand.view(torch.int32).bitwise_and(_KEPT_BY_TF32).view(torch.float32)
    return operand.to(dtype).to(operand.dtype)


@functools.cache
def _product(func: Any) -> Product | None:
    name = _name(func)
    if name in _MATMULS:
        return Product.MATMUL
    return next((product for part, product in _PRODUCTS.items() if part in name), None)


def _name(func: Any) -> str:
    return str(func.overloadpacket.__name__ if isinstance(func, OpOverload) else func.name())


def _written(func: Any) -> Iterator[int | str]:
    """Positions and names of arguments that an operator writes to."""
    if isinstance(func, OpOverload):
        for position, argument in enumerate(schema_of(func).arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                yield from (position, argument.name)
