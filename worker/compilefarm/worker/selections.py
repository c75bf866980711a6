"""Results that are indices of selected values, such as those of argmax, sort and topk.

Of two values that are nearly equal either may be selected. The values that the artifact and eager selected are looked
up in the reference: the artifact's selection is as good if the two are nearer to each other than eager's values are to
the reference.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from compilefarm.graph.tolerances import epsilon_of

# What keeps elements and their order.
_CARRIERS = frozenset({"clone", "contiguous", "detach", "flatten", "int", "long", "reshape", "squeeze", "to", "type",
                       "unsqueeze", "view"})  # fmt: skip
# By what they give: indices themselves, or values with indices.
_OF_INDICES = frozenset({"argmax", "argmin", "argsort"})
_OF_BOTH = frozenset({"kthvalue", "max", "median", "min", "mode", "sort", "topk"})
# The second argument of these is a number of elements.
_COUNTING = frozenset({"kthvalue", "topk"})
# Two values may each be off as far as eager's.
_TIMES_EAGER = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """A result that holds indices of values.

    Attributes:
        values: the node whose values are selected.
        dimension: the dimension along which they are selected; None: among all elements.
    """

    values: Node
    dimension: int | None


def find_selections(graph_module: GraphModule) -> Mapping[str, Selection]:
    """Returns the outputs of a graph that are indices of selected values, by the names that results have."""
    outputs = graph_module.graph.output_node().args[0]
    assert isinstance(outputs, Sequence)
    found = {f"output {number}": _selection(node) for number, node in enumerate(outputs) if isinstance(node, Node)}
    return {name: selection for name, selection in found.items() if selection is not None}


def with_selected_values(graph_module: GraphModule, selections: Mapping[str, Selection]) -> GraphModule:
    """Returns a copy of the graph whose results are the values that each selection is made from, in that order."""
    copy, nodes = Graph(), dict[Node, Node]()
    copy.graph_copy(graph_module.graph, val_map=nodes)
    copy.output(tuple(nodes[selection.values] for selection in selections.values()))
    return GraphModule(graph_module, copy)


def are_as_good(
    ours: torch.Tensor,
    theirs: torch.Tensor,
    *,
    selection: Selection,
    eager: Sequence[torch.Tensor],
    reference: torch.Tensor,
    inside: torch.dtype,
) -> torch.Tensor:
    """Returns a mask of the selected indices that are as good as those of eager.

    Args:
        ours: the indices that the artifact gave.
        theirs: the indices that eager gave.
        selection: the values that they are indices of.
        eager: the values of eager, as often as they were computed.
        reference: those of the reference.
        inside: the coarsest dtype on the way to them.
    """
    exact = reference.double()
    off = torch.stack([(near.double() - exact).abs() for near in eager]).amax(0)
    if selection.dimension is None:
        exact, off, dimension = exact.flatten(), off.flatten(), 0
    else:
        dimension = selection.dimension % max(exact.dim(), 1)
    size = exact.shape[dimension]
    shape = [each if number != dimension else -1 for number, each in enumerate(exact.shape)]
    chosen, expected = ours.reshape(shape).long(), theirs.reshape(shape).long()
    is_valid = (chosen >= 0) & (chosen < size) & _are_distinct(chosen, dimension)
    margin = exact.gather(dimension, chosen.clamp(0, size - 1)) - exact.gather(dimension, expected)
    error = off.amax(dimension, keepdim=True)
    magnitude = exact.abs().amax(dimension, keepdim=True)
    allowed = _TIMES_EAGER * error + epsilon_of(inside) * magnitude
    return (is_valid & (margin.abs() <= allowed)).reshape(ours.shape)


def _are_distinct(chosen: torch.Tensor, dimension: int) -> torch.Tensor:
    """Returns a mask of the rows without repeated indices: no value is selected twice."""
    order = chosen.sort(dimension).values
    repeated = (order.diff(dim=dimension) == 0).any(dimension, keepdim=True)
    return ~repeated.expand(chosen.shape)


def _selection(node: Node) -> Selection | None:
    while _name(node) in _CARRIERS and isinstance(node.args[0], Node):
        node = node.args[0]
    if node.target is operator.getitem and node.args[1] == 1 and isinstance(node.args[0], Node):
        return _described(node.args[0], among=_OF_BOTH)
    return _described(node, among=_OF_INDICES)


def _described(node: Node, *, among: frozenset[str]) -> Selection | None:
    name = _name(node)
    values = node.args[0] if node.args else node.kwargs.get("input")
    if name not in among or not isinstance(values, Node):
        return None
    position = 2 if name in _COUNTING else 1
    dimension: Any = node.args[position] if len(node.args) > position else node.kwargs.get("dim", _default(name))
    return Selection(values=values, dimension=dimension) if dimension is None or type(dimension) is int else None


def _default(name: str) -> int | None:
    return None if name in ("argmax", "argmin") else -1


def _name(node: Node) -> str:
    return str(node.target if isinstance(node.target, str) else getattr(node.target, "__name__", ""))
