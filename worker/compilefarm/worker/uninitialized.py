"""Finds results that depend on uninitialized memory."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any

from torch.fx import GraphModule

from compilefarm.graph.targets import nodes_of
from compilefarm.torch_internals.operator_calls import OperatorMode
from compilefarm.worker.comparison import differing_names
from compilefarm.worker.results import Results

# aten/src/ATen/native/native_functions.yaml
_EMPTY = frozenset(
    {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided", "resize", "resize_"}
)


class _Filling(OperatorMode):  # type: ignore[misc]  # torch gives it no type
    """Fills uninitialized memory with a number."""

    supports_higher_order_operators = True

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "").partition(".")[0] in _EMPTY:
            result.fill_(self._number)
        return result


def find_uninitialized(graph_module: GraphModule, run: Callable[[], Results]) -> Set[str]:
    """Returns the names of results that depend on what lies in uninitialized memory.

    Args:
        graph_module: the graph. It is not run if it allocates no such memory.
        run: runs the graph on the same inputs each time.
    """
    if not any(_name(node.target) in _EMPTY for node in nodes_of(graph_module)):
        return frozenset()
    with _Filling(0):
        first = run()
    with _Filling(1):
        second = run()
    return differing_names(first, second)


def _name(target: object) -> str:
    return (target if isinstance(target, str) else getattr(target, "__name__", "")).partition(".")[0]
