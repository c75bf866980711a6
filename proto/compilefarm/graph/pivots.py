"""Pivots: by which rows a factorization was swapped. Kernels swap rows by them, and believe that these exist.

LAPACK reads and writes at whatever row a pivot names (aten/src/ATen/native/BatchLinearAlgebraKernel.cpp:
lu_solve_kernel, ldl_solve_kernel), and torch.lu_unpack takes there to be as many pivots as there are steps of the
factorization (aten/src/ATen/native/BatchLinearAlgebra.cpp). So pivots are an input of the graph, which is the pod's,
and the farm's own when it tries a program; or the graph has made them by a factorization of no more rows. Nothing lies
between: computed, or in another order, they would be a choice of the request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from compilefarm.core.compiler_settings import names
from compilefarm.graph.believed import BelievedTensors, argument_of, holders_of
from compilefarm.graph.operators import base_of, named_arguments
from compilefarm.graph.writes import WriteRecorder
from compilefarm.torch_internals.operators import OpOverload, schema_of
from compilefarm.torch_internals.symbolic_shapes import GuardOnDataDependentSymNode

# Of an LDL factorization some pivots are negative, and say that two rows belong together.
_LU, _LDL = "lu", "ldl"
_SOLVING: Mapping[str, str] = {"linalg_lu_solve": _LU, "lu_solve": _LU, "lu_unpack": _LU, "linalg_ldl_solve": _LDL}
_FACTORING: Mapping[str, str] = {
    **dict.fromkeys(
        names("""
        linalg_lu_factor linalg_lu_factor_ex _lu_with_info _linalg_solve_ex _linalg_det _linalg_slogdet
    """),
        _LU,
    ),
    **dict.fromkeys(names("linalg_ldl_factor linalg_ldl_factor_ex"), _LDL),
}
_FACTORS, _PIVOTS = ("LU", "LU_data", "LD"), ("pivots", "LU_pivots")
# Place of the pivots among the arguments, where they have no name.
_PLACES = {"lu_solve": 2}
UNKNOWN = "its pivots are computed, and are neither an input of the graph nor those of a factorization in it"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """Pivots that may be believed.

    Attributes:
        family: of the factorization; empty for an input.
        rows: of what was factored; an input has as many as what it is used with.
        layout: sizes, strides and offset when they were made.
    """

    family: str
    rows: Any
    layout: tuple[Any, ...]

    def fits(self, pivots: torch.Tensor, factors: torch.Tensor, *, family: str) -> bool:
        """Whether these are all of them, and each is a row of the factors; with guards on symbols."""
        if self.layout[0] != pivots.dim() or not all(map(_equal, self.layout, _layout(pivots))):
            return False
        return not self.family or (self.family == family and bool(self.rows <= factors.shape[-2]))


class PivotCheck:
    """Looks at all pivots that kernels are given while a graph runs on fake tensors.

    Args:
        writes: knows the inputs of the graph, and what is written to.
    """

    def __init__(self, *, writes: WriteRecorder) -> None:
        self.believed = BelievedTensors[_Known](writes=writes, meaning="pivots")

    def know_input(self, tensor: torch.Tensor, *, number: int) -> None:
        """Takes an input of the graph for what may be pivots."""
        self.believed.know_input(tensor, _Known(family="", rows=None, layout=_layout(tensor)), number=number)

    def find_misfit(self, called: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
        """Why an operator may not run with these arguments; None if it may."""
        family = _SOLVING.get(base_of(called.name()))
        if family is None:
            return None
        given = named_arguments(schema_of(called), args, kwargs)
        factors, pivots = (next(given[name] for name in each if name in given) for each in (_FACTORS, _PIVOTS))
        try:
            if not _are_as_many(factors, pivots):
                return f"it has pivots of {tuple(pivots.shape)} for factors of {tuple(factors.shape)}"
            may_use = self.believed.use(pivots, fits=lambda known: known.fits(pivots, factors, family=family))
        except GuardOnDataDependentSymNode:
            return UNKNOWN
        return None if may_use else UNKNOWN

    def note(self, called: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """Remembers the pivots of a factorization. What it is given to write them to may be part of something else."""
        family, schema = _FACTORING.get(base_of(called.name())), schema_of(called)
        if family is None or schema.is_mutable:
            return
        (factored,) = (args or (next(iter(kwargs.values())),))[:1]
        place = [returned.name for returned in schema.returns].index("pivots")
        pivots = result[place]
        self.believed.know_made(pivots, _Known(family=family, rows=factored.shape[-2], layout=_layout(pivots)))


def find_unknown_pivots(node: Node, name: str) -> str | None:
    """The same objection, of a graph that was captured; None too where nothing is known of the values of nodes. It
    looks at where pivots come from alone, and the farm has the last word.

    Args:
        node: a call, in a graph whose nodes have meta["example_value"].
        name: of what it calls.
    """
    base = _base(name)
    if base not in _SOLVING:
        return None
    pivots = argument_of(node, names=_PIVOTS, place=_PLACES.get(base, 1))
    value = pivots.meta.get("example_value") if isinstance(pivots, Node) else None
    if not isinstance(value, torch.Tensor):
        return None
    # As text: to compare sizes would put guards on symbols.
    layout = str(_layout(value))
    known = (str(_layout(holder)) for each, holder in holders_of(value, node) if _may_be_believed(each))
    return None if layout in known else UNKNOWN


def _may_be_believed(node: Node) -> bool:
    return node.op == "placeholder" or _base(str(getattr(node.target, "__name__", node.target))) in _FACTORING


def _base(name: str) -> str:
    """The name of an operator, of a function or a method for it, without what is around it."""
    return (
        name.rpartition("::")[2].partition(".")[0] if "::" in name else name.removesuffix(".default").rpartition(".")[2]
    )


def _are_as_many(factors: torch.Tensor, pivots: torch.Tensor) -> bool:
    """Whether there is a pivot for each step of a factorization, of each matrix of a batch."""
    if factors.dim() < 2 or pivots.dim() != factors.dim() - 1 or pivots.dtype != torch.int32:
        return False
    *batch, rows, columns = factors.shape
    steps = rows if rows <= columns else columns
    return all(map(_equal, pivots.shape, (*batch, steps)))


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.dim(), *tensor.shape, *tensor.stride(), tensor.storage_offset()


def _equal(one: Any, other: Any) -> bool:
    return bool(one == other)
