"""Runs a graph so that of equal elements the last one comes first out of a sort.

Unless a sort is stable, the order of equal elements is not defined, and results that depend on it may come in any
order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from compilefarm.graph.targets import nodes_of
from compilefarm.torch_internals.operators import OpOverload, schema_of
from compilefarm.worker.reference import InsideMode

# As graphs name them.
_ORDERING = frozenset({"argsort", "kthvalue", "median", "mode", "msort", "nanmedian", "sort", "topk"})
_ATEN = torch.ops.aten
# What these become; each gives values with their positions.
_RANKING = frozenset({
    _ATEN.kthvalue.default, _ATEN.median.dim, _ATEN.mode.default, _ATEN.nanmedian.dim, _ATEN.sort.default,
    _ATEN.sort.stable, _ATEN.topk.default,
})  # fmt: skip


class LastFirst(InsideMode):
    """Reverses the input of every operator that ranks elements."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in _RANKING or kwargs.get("stable") or args[0].dim() == 0:
            return func(*args, **kwargs)
        dimension = _dimension(func, args, kwargs)
        values, positions = func(args[0].flip(dimension), *args[1:], **kwargs)
        return values, args[0].shape[dimension] - 1 - positions


def has_ranking(graph_module: GraphModule) -> bool:
    """Returns whether a graph sorts, or selects by rank."""
    return any(_name(node.target) in _ORDERING for node in nodes_of(graph_module))


def _dimension(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    arguments = schema_of(func).arguments
    position = next(position for position, argument in enumerate(arguments) if argument.name == "dim")
    found: int = args[position] if position < len(args) else kwargs.get("dim", arguments[position].default_value)
    return found


def _name(target: object) -> str:
    return (target if isinstance(target, str) else getattr(target, "__name__", "")).partition(".")[0]
