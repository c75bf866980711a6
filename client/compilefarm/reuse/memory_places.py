"""Where the tensors of a frame lie in memory, as far as programs rest on it and no guard tells.

A graph that writes to a tensor is another program where that tensor overlaps with another one (graph/shared_memory.py),
and one that takes elements by their places in memory has other elements where a tensor begins elsewhere. A trace looks
at both when it begins; what it has found holds for tensors that lie alike.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from compilefarm.graph.shared_memory import extent_of
from compilefarm.graph.writes import find_storage

# What a variant is said to rest on beside the state, if a graph takes elements by their places in memory.
BEGINNINGS = "where tensors begin in memory"
# How functions, methods and operators are called that do: all other ones count from where a tensor begins.
_BY_PLACE = "as_strided"


def takes_places(graphs: Iterable[torch.fx.Graph]) -> bool:
    """Whether a graph takes elements by their places in memory."""
    return any(
        _BY_PLACE in str(getattr(node.target, "__name__", node.target)) for graph in graphs for node in graph.nodes
    )


class MemoryPlaces:
    """Says where tensors lie. It remembers them: one is for one moment.

    Args:
        beginnings: whether it tells where in its memory each tensor begins.

    Attributes:
        beginnings: the same.
    """

    def __init__(self, *, beginnings: bool) -> None:
        self.beginnings = beginnings
        self._known: dict[int, tuple[torch.Tensor, str]] = {}
        # By the address of a memory, which torch keeps one Python object for as long as somebody holds it.
        self._in_memory: dict[int, tuple[torch.UntypedStorage, list[tuple[int, int]]]] = {}

    def describe(self, tensor: torch.Tensor) -> str:
        """Says with which tensors that were described before a tensor overlaps, and how far from them it begins."""
        known = self._known.get(id(tensor))
        if known is None:
            known = self._known[id(tensor)] = tensor, self._describe(tensor)
        return known[1]

    def _describe(self, tensor: torch.Tensor) -> str:
        storage = find_storage(tensor)
        if storage is None:
            return "nowhere"
        begin, end = extent_of(tensor)
        _, others = self._in_memory.setdefault(id(storage), (storage, []))
        overlaps = [
            f"{number}{begin - first:+}" for number, (first, last) in enumerate(others) if begin < last and first < end
        ]
        others.append((begin, end))
        return f"{begin if self.beginnings else ''}{overlaps or ''}"
