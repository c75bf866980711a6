"""Finds elements of results that depend on uninitialized memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from compilefarm.graph.targets import nodes_of
from compilefarm.torch_internals.operator_calls import OperatorMode
from compilefarm.worker.comparison import differing_positions
from compilefarm.worker.results import Results

# aten/src/ATen/native/native_functions.yaml
_EMPTY = frozenset({"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"})
# Of these only what a tensor has grown by is not initialized.
_IN_PLACE = frozenset({"resize_", "resize_as_"})
_RESIZING = frozenset({"resize", "resize_as"}) | _IN_PLACE


class _Filling(OperatorMode):  # type: ignore[misc]  # torch gives it no type
    """Fills uninitialized memory with a number."""

    supports_higher_order_operators = True

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = _name(func)
        written = _written(name, args) if name in _RESIZING else 0
        result = func(*args, **(kwargs or {}))
        if name in _EMPTY:
            result.fill_(self._number)
        elif name in _RESIZING and result.numel() > written:
            # What grows lies in a row, in whichever order of dimensions.
            result.as_strided((result.numel(),), (1,))[written:].fill_(self._number)
        return result


def _written(name: str, args: Sequence[Any]) -> int:
    """How many elements there are that a tensor may come to hold, before it is resized."""
    tensor: torch.Tensor = args[0]
    if name not in _IN_PLACE:
        return int(tensor.numel())
    return int(tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset())


def find_unwritten(graph_module: GraphModule, run: Callable[[], Results]) -> Mapping[str, torch.Tensor]:
    """Returns a mask of the elements that depend on what lies in uninitialized memory, for each result that has any.

    Args:
        graph_module: the graph. It is not run if it allocates no such memory.
        run: runs the graph on the same inputs each time.
    """
    if not any(_name(node.target) in _EMPTY | _RESIZING for node in nodes_of(graph_module)):
        return {}
    with _Filling(0):
        first = run()
    with _Filling(1):
        second = run()
    return differing_positions(first, second)


def _name(target: object) -> str:
    return (target if isinstance(target, str) else getattr(target, "__name__", "")).partition(".")[0]
