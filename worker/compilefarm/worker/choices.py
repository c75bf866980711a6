"""Integers that say which of some values is the largest: of two that are nearly equal, either is right.

What the artifact picked is looked up in the reference. It is as good as eager's choice where the two values there are
nearer to each other than eager's own values are to the reference.
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
class Choice:
    """A result that picks among values.

    Attributes:
        values: the node that has them.
        dimension: along which; None: among all of them.
    """

    values: Node
    dimension: int | None


def find_choices(graph_module: GraphModule) -> Mapping[str, Choice]:
    """Outputs of a graph that pick, by the names that results have."""
    outputs = graph_module.graph.output_node().args[0]
    assert isinstance(outputs, Sequence)
    found = {f"output {number}": _choice(node) for number, node in enumerate(outputs) if isinstance(node, Node)}
    return {name: choice for name, choice in found.items() if choice is not None}


def watching(graph_module: GraphModule, choices: Mapping[str, Choice]) -> GraphModule:
    """The graph with the values that are picked from as its only results, in the order of the choices."""
    copy, nodes = Graph(), dict[Node, Node]()
    copy.graph_copy(graph_module.graph, val_map=nodes)
    copy.output(tuple(nodes[choice.values] for choice in choices.values()))
    return GraphModule(graph_module, copy)


def alike(
    ours: torch.Tensor,
    theirs: torch.Tensor,
    *,
    choice: Choice,
    eager: Sequence[torch.Tensor],
    reference: torch.Tensor,
    inside: torch.dtype,
) -> torch.Tensor:
    """Which elements are as good as those of eager.

    Args:
        ours: what the artifact picked.
        theirs: what eager picked.
        choice: among what.
        eager: the values of eager, as often as they were computed.
        reference: those of the reference.
        inside: the coarsest dtype on the way to them.
    """
    exact = reference.double()
    off = torch.stack([(near.double() - exact).abs() for near in eager]).amax(0)
    if choice.dimension is None:
        exact, off, dimension = exact.flatten(), off.flatten(), 0
    else:
        dimension = choice.dimension % max(exact.dim(), 1)
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
    """By row, since nothing is picked twice."""
    order = chosen.sort(dimension).values
    repeated = (order.diff(dim=dimension) == 0).any(dimension, keepdim=True)
    return ~repeated.expand(chosen.shape)


def _choice(node: Node) -> Choice | None:
    while _name(node) in _CARRIERS and isinstance(node.args[0], Node):
        node = node.args[0]
    if node.target is operator.getitem and node.args[1] == 1 and isinstance(node.args[0], Node):
        return _described(node.args[0], among=_OF_BOTH)
    return _described(node, among=_OF_INDICES)


def _described(node: Node, *, among: frozenset[str]) -> Choice | None:
    name = _name(node)
    values = node.args[0] if node.args else node.kwargs.get("input")
    if name not in among or not isinstance(values, Node):
        return None
    position = 2 if name in _COUNTING else 1
    dimension: Any = node.args[position] if len(node.args) > position else node.kwargs.get("dim", _default(name))
    return Choice(values=values, dimension=dimension) if dimension is None or type(dimension) is int else None


def _default(name: str) -> int | None:
    return None if name in ("argmax", "argmin") else -1


def _name(node: Node) -> str:
    return str(node.target if isinstance(node.target, str) else getattr(node.target, "__name__", ""))
