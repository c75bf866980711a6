"""Numbers that tensors hold and that Dynamo guards to be those of one call, as literals where torch takes numbers.

Of an input that is an integer tensor without dimensions Dynamo takes the element for a symbol wherever torch takes a
number (torch/_subclasses/fake_tensor.py: from_real_tensor): one of the model, such as NumPy's integers that it has, or
an argument. Where torch wants to know which one it is, as the number of classes of one_hot, Dynamo guards it. A worker
has no element, and could tell nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from types import BuiltinFunctionType
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node, map_arg

from compilefarm.graph.operators import find_operator, overloads_of
from compilefarm.graph.rewriting import Copies, rewritten
from compilefarm.torch_internals.operators import OpOverload, OpOverloadPacket, schema_of

# Of arguments, as torch writes them.
_NUMBERS = frozenset({"int", "SymInt", "float", "number", "bool"})
_SUBSCRIPTING = (operator.getitem, operator.setitem)
_Arguments = tuple[Sequence[Any], Mapping[str, Any]]


def with_fixed_numbers(graph_module: GraphModule) -> GraphModule:
    """A graph that holds such numbers itself; the graph itself if there are none."""
    fixed = {
        node: number
        for node in graph_module.graph.find_nodes(op="placeholder")
        if (number := _find_fixed(node.meta.get("example_value"))) is not None
    }
    told = {
        user: _subscripted(user, fixed) if user.target in _SUBSCRIPTING else _with_literals(user, fixed)
        for node in fixed
        for user in node.users
    }

    def takes_literals(node: Node) -> bool:
        return node in told and told[node] != (node.args, node.kwargs)

    def write(graph: Graph, node: Node, copies: Copies) -> Node:
        copied = graph.node_copy(node, copies.__getitem__)
        copied.args, copied.kwargs = map_arg(told[node], copies.__getitem__)
        return copied

    return rewritten(graph_module, is_rewritten=takes_literals, write=write)


def numbers_left_open(graph_module: GraphModule) -> list[torch.SymInt]:
    """Such numbers that Dynamo has not guarded yet, as far as torch takes them for numbers."""
    inputs = graph_module.graph.find_nodes(op="placeholder")
    numbers = {node: getattr(node.meta.get("example_value"), "item_memo", None) for node in inputs}
    return [
        number
        for node, number in numbers.items()
        if isinstance(number, torch.SymInt)
        and _find_fixed(node.meta["example_value"]) is None
        and any(_with_literals(user, {node: 0}) != (user.args, user.kwargs) for user in node.users)
    ]


def _find_fixed(value: Any) -> int | None:
    """The number that Dynamo guards a tensor to hold; None if it guards none."""
    # Written to, a tensor has none (torch/_subclasses/fake_tensor.py: FakeTensorMemo).
    number = getattr(value, "item_memo", None)
    return number.node.maybe_as_int() if isinstance(number, torch.SymInt) else None


def _with_literals(node: Node, fixed: Mapping[Node, int]) -> _Arguments:
    """Arguments of a call, with literals where each form of what is called takes numbers."""
    overloads = _overloads_of(node)

    def told(which: int | str, given: Any) -> Any:
        return map_arg(given, lambda each: fixed.get(each, each)) if _takes_numbers(overloads, which) else given

    return (
        tuple(told(place, given) for place, given in enumerate(node.args)),
        {name: told(name, given) for name, given in node.kwargs.items()},
    )


def _subscripted(node: Node, fixed: Mapping[Node, int]) -> _Arguments:
    """Arguments of a subscript, with literals where torch 2.11 asks for the number; later ones ask for none."""
    subscripted, subscript, *written = node.args
    return (subscripted, map_arg(subscript, lambda each: fixed.get(each, each)), *written), node.kwargs


def _overloads_of(node: Node) -> Sequence[OpOverload]:
    """All forms of the operator that is called, or that has the name of the function of torch or of the method."""
    target = node.target
    if isinstance(target, OpOverload):
        return [target]
    if isinstance(target, BuiltinFunctionType):
        target = target.__name__
    packet = find_operator(f"aten::{target}", is_overload=False) if isinstance(target, str) else target
    return overloads_of(packet) if isinstance(packet, OpOverloadPacket) else []


def _takes_numbers(overloads: Sequence[OpOverload], which: int | str) -> bool:
    """Whether an argument, by its place or its name, is a number or some in every form that has it."""
    declared = (schema_of(overload).arguments for overload in overloads)
    found = [each for all_of in declared for place, each in enumerate(all_of) if which in (place, each.name)]
    kinds = {str(each.real_type).removesuffix("]").removesuffix("]").rpartition("[")[2] for each in found}
    return bool(kinds) and kinds <= _NUMBERS
