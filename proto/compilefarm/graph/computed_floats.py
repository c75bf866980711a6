"""Floats that are computed of floats that differ from call to call: as tensors of one float64, which are read again.

Symbols are added and multiplied in exact terms; tensors are rounded at each step, as Python's floats are. Optimizers
take the larger of two floats or multiply them, and schedulers change those.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from compilefarm.core.compiler_settings import names
from compilefarm.graph.dynamic_floats import inexact_nodes

# What computes with tensors as with numbers.
_ARITHMETIC = frozenset(
    {operator.add, operator.sub, operator.mul, operator.truediv, operator.neg, operator.pow, operator.abs}
)
_CHOOSING: Mapping[Any, Any] = {torch.sym_max: operator.gt, torch.sym_min: operator.lt}
# What Dynamo calls for functions of `math`, without what stands before it (torch/__init__.py: _sym_sqrt).
_OF_MATH = frozenset(names("acos asin atan cos cosh log2 sin sinh sqrt tan tanh"))
_BEFORE = "_sym_"


class _Unsaid(Exception):
    """A number is computed in a way that is not known of tensors."""


def with_computed_floats(graph_module: GraphModule) -> GraphModule:
    """A graph that computes such floats with tensors, as far as it can; the graph itself if there are none."""
    inexact = {node for node in inexact_nodes(graph_module.graph.nodes) if _is_float(node)}
    if not inexact:
        return graph_module
    writer = _Writer()
    for node in graph_module.graph.nodes:
        writer.write(node, as_tensor=node in inexact)
    return GraphModule(graph_module, writer.graph)


class _Writer:
    """Writes the copy of a graph."""

    def __init__(self) -> None:
        self.graph = Graph()
        self._copies: dict[Node, Node] = {}
        self._tensors: dict[Node, Node] = {}
        # Numbers that are read from tensors, or computed of such.
        self._reached: set[Node] = set()
        # What all of these tensors look like.
        self._looks: Any = None

    def write(self, node: Node, *, as_tensor: bool) -> None:
        """Copies the next node. A number that is to be computed as a tensor is copied as it is if that cannot be."""
        if _is_float(node) and not self._reached.isdisjoint(node.all_input_nodes):
            self._reached.add(node)
        if as_tensor:
            try:
                read = self.graph.call_method("item", (self._tensor_of(node),))
            except _Unsaid:
                pass
            else:
                # What the pod knows of it now, as of floats that are read from inputs.
                read.meta["example_value"] = node.meta["example_value"]
                self._copies[node] = read
                return
        self._copies[node] = self.graph.node_copy(node, self._copies.__getitem__)
        if _is_read(node):
            self._tensors[node] = self._read(node)
            self._reached.add(node)

    def _tensor_of(self, number: Node) -> Node:
        """The tensor for a number."""
        if number not in self._tensors:
            self._tensors[number] = self._computed(number) if number in self._reached else self._made(number)
        return self._tensors[number]

    def _read(self, number: Node) -> Node:
        """What the number is now: the graph may write to the tensor that it is read from."""
        (tensor,) = number.all_input_nodes
        node = self.graph.call_method("to", (self._copies[tensor], torch.float64), {"copy": True})
        node.meta["example_value"] = self._looks = tensor.meta["example_value"].to(torch.float64)
        return node

    def _made(self, number: Node) -> Node:
        """Of a size, or what is computed of sizes."""
        if not isinstance(number.meta.get("example_value"), torch.SymInt | torch.SymFloat):
            raise _Unsaid
        node = self.graph.call_function(torch.full, ((), self._copies[number]), {"dtype": torch.float64})
        node.meta["example_value"] = self._looks
        return node

    def _computed(self, number: Node) -> Node:
        if number.op != "call_function" or number.kwargs or not _is_float(number):
            raise _Unsaid
        args = [self._tensor_of(each) if isinstance(each, Node) else _constant(each) for each in number.args]
        return self._compute(number.target, args)

    def _compute(self, target: Any, args: Sequence[Any]) -> Node:
        if target in _CHOOSING:
            # Python's keep the first unless the second is beyond it, whatever is no number.
            is_beyond = self._call(_CHOOSING[target], args[1], args[0])
            is_beyond.meta["example_value"] = self._looks.to(torch.bool)
            return self._call(torch.where, is_beyond, args[1], args[0])
        name = str(getattr(target, "__name__", ""))
        if name.startswith(_BEFORE) and name.removeprefix(_BEFORE) in _OF_MATH:
            return self._call(getattr(torch, name.removeprefix(_BEFORE)), *args)
        if target not in _ARITHMETIC:
            raise _Unsaid
        return self._call(target, *args)

    def _call(self, target: Callable[..., Any], *args: Any) -> Node:
        node = self.graph.call_function(target, args)
        node.meta["example_value"] = self._looks
        return node


def _constant(value: object) -> int | float:
    if isinstance(value, int | float):
        return value
    raise _Unsaid


def _is_float(node: Node) -> bool:
    return isinstance(node.meta.get("example_value"), torch.SymFloat)


def _is_read(node: Node) -> bool:
    """Whether a number is the only element of a tensor of floats."""
    if node.op != "call_method" or node.target != "item" or not _is_float(node):
        return False
    value = node.args[0].meta.get("example_value") if isinstance(node.args[0], Node) else None
    return isinstance(value, torch.Tensor) and value.device.type == "cpu"
