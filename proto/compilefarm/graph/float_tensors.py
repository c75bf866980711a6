"""Floats that differ from call to call, where torch or Inductor decides something by them: as the tensors that Dynamo
hands over in their place.

Of the base of a power torch asks whether it is one (aten/src/ATen/native/Pow.cpp: pow), of an exponent which one it is,
and of the weight between two tensors Inductor whether it is below a half (torch/_inductor/decomposition.py:
_foreach_lerp_scalar). Of a tensor nothing is asked, and the same is computed. Optimizers raise momenta to powers and
weigh by them.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from types import BuiltinFunctionType
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from compilefarm.graph.dynamic_floats import is_dynamic_float

_ARITHMETIC = frozenset({operator.add, operator.sub, operator.mul, operator.truediv, operator.neg})
# The last is the method.
_POWERS: frozenset[Any] = frozenset({torch.pow, operator.pow, "pow"})
_Copies = dict[Node, Any]


def with_tensors_for_floats(graph_module: GraphModule) -> GraphModule:
    """A graph that computes with such tensors in some places; the graph itself if there are none."""
    floats = _floats_of(graph_module)
    if not any(_takes_tensor(node, floats) for node in graph_module.graph.nodes):
        return graph_module
    graph, copies = Graph(), _Copies()
    for node in graph_module.graph.nodes:
        if _takes_tensor(node, floats):
            copies[node] = _with_tensor(graph, node, copies)
        elif node.target is operator.getitem and isinstance(listed := copies.get(node.all_input_nodes[0]), list):
            copies[node] = listed[node.args[1]]
        else:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    return GraphModule(graph_module, graph)


def _floats_of(graph_module: GraphModule) -> set[Node]:
    """Nodes that read such a float, or compute with it and constants."""
    found: set[Node] = set()
    for node in graph_module.graph.nodes:
        given = node.all_input_nodes
        if is_dynamic_float(node) or (node.target in _ARITHMETIC and len(given) == 1 and given[0] in found):
            found.add(node)
    return found


def _takes_tensor(node: Node, floats: set[Node]) -> bool:
    if node.kwargs or node.op not in ("call_function", "call_method"):
        return False
    if _lerp_of(node):
        return len(node.args) == 3 and node.args[2] in floats and _are_precise(node.args[0])
    if node.target in _POWERS and len(node.args) == 2 and node.args[1] in floats:
        return _are_precise(node.args[0])
    if node.target in _POWERS or _is_of_lists(node, "_foreach_pow"):
        return len(node.args) == 2 and node.args[0] in floats and _are_precise(node.args[1])
    is_weighed = _is_of_lists(node, "_foreach_lerp_") and len(node.args) == 3 and not node.users
    return is_weighed and node.args[2] in floats and _are_precise(node.args[0])


def _lerp_of(node: Node) -> str:
    """The method that a node calls between two tensors, or the one for the function; empty if it calls none."""
    if node.target is torch.lerp:
        return "lerp"
    return str(node.target) if node.op == "call_method" and node.target in ("lerp", "lerp_") else ""


def _is_of_lists(node: Node, name: str) -> bool:
    return type(node.target) is BuiltinFunctionType and node.target.__name__ == name


def _are_precise(value: Any) -> bool:
    """Whether tensors are of a dtype that a number takes, and in which is computed: in narrower ones kernels differ."""
    tensors = value if isinstance(value, list | tuple) else [value]
    held = (each.meta.get("example_value") if isinstance(each, Node) else None for each in tensors)
    return all(isinstance(each, torch.Tensor) and each.dtype in (torch.float32, torch.float64) for each in held)


def _with_tensor(graph: Graph, node: Node, copies: _Copies) -> Any:
    """What stands in a copy of a graph for the result of a node: another, or a list of them."""
    args: Any = node.args
    if method := _lerp_of(node):
        return _weighed(graph, method, args, copies)
    if _is_of_lists(node, "_foreach_lerp_"):
        for start, end in zip(args[0], args[1], strict=True):
            _weighed(graph, "lerp_", (start, end, args[2]), copies)
        return None
    if node.target in _POWERS:
        return _raised(graph, args, copies) if _are_precise(args[0]) else _power(graph, args[0], args[1], copies)
    return [_power(graph, args[0], each, copies) for each in args[1]]


def _weighed(graph: Graph, method: str, args: tuple[Node, Node, Node], copies: _Copies) -> Node:
    start, end, weight = args
    result = graph.call_method(method, (copies[start], copies[end], _tensor_of(graph, weight, copies, like=start)))
    result.meta["example_value"] = start.meta["example_value"]
    return result


def _raised(graph: Graph, args: tuple[Node, Node], copies: _Copies) -> Node:
    """A tensor raised to a number."""
    base, power = args
    result = graph.call_function(torch.pow, (copies[base], _tensor_of(graph, power, copies, like=base)))
    result.meta["example_value"] = base.meta["example_value"]
    return result


def _power(graph: Graph, base: Node, power: Node, copies: _Copies) -> Node:
    result = graph.call_function(torch.pow, (_tensor_of(graph, base, copies, like=power), copies[power]))
    result.meta["example_value"] = power.meta["example_value"]
    return result


def _tensor_of(graph: Graph, number: Node, copies: _Copies, *, like: Node) -> Node:
    """The tensor for a number, in the dtype of another."""
    tensor, held = _computed(graph, number, copies)
    dtype = like.meta["example_value"].dtype
    cast = graph.call_method("to", (tensor, dtype))
    cast.meta["example_value"] = held.to(dtype)
    return cast


def _computed(graph: Graph, number: Node, copies: Mapping[Node, Any]) -> tuple[Node, torch.Tensor]:
    """What a number is computed of, computed with a tensor; and what that looks like."""
    if is_dynamic_float(number):
        given: Any = number.args[0]
        return copies[given], given.meta["example_value"]
    (inner,) = number.all_input_nodes
    tensor, held = _computed(graph, inner, copies)
    result = graph.call_function(number.target, tuple(tensor if each is inner else each for each in number.args))
    result.meta["example_value"] = held
    return result, held
