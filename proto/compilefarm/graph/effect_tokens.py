"""Tokens by which AOTAutograd keeps operators in order that do something beside computing, such as checks of what
linear algebra has found. No request has them: its nodes are in order, and none is left out that does something.
"""

from __future__ import annotations

from operator import getitem

from torch.fx import Graph, GraphModule, Node

from compilefarm.torch_internals.operators import HigherOrderOperator, OpOverload, schema_of

_TOKENS = frozenset({"prims::_make_token", "prims::_sink_tokens"})


def leave_out_tokens(traced: GraphModule) -> None:
    """Has a graph call such operators as they are (torch/_higher_order_ops/effects.py: with_effects)."""
    graph = traced.graph
    ordered = [node for node in graph.nodes if _is_ordered(node)]
    if not ordered:
        return
    for node in ordered:
        _call_directly(graph, node)
    for node in reversed(graph.nodes):
        if not node.users and _is_token(node):
            graph.erase_node(node)
    traced.recompile()


def _is_ordered(node: Node) -> bool:
    is_wrapper = isinstance(node.target, HigherOrderOperator) and node.target.name() == "with_effects"
    return is_wrapper and isinstance(node.args[1], OpOverload)


def _is_token(node: Node) -> bool:
    if isinstance(node.target, OpOverload):
        return schema_of(node.target).name in _TOKENS
    return _is_ordered(node) or (node.target is getitem and _is_ordered(node.args[0]))


def _call_directly(graph: Graph, node: Node) -> None:
    """Writes behind a node the call that it wraps; the first item of what that gives was the token."""
    _, operator, *args = node.args
    values = node.meta.get("val")
    results = values[1:] if isinstance(values, list | tuple) else ()
    is_one = len(schema_of(operator).returns) == 1
    with graph.inserting_after(node):
        called = graph.call_function(operator, tuple(args), node.kwargs)
    called.meta = {**node.meta, "val": results[0] if is_one else tuple(results)}
    for user in [*node.users]:
        number = user.args[1]
        if user.target is getitem and number == 0:
            # It orders what follows.
            user.replace_all_uses_with(None)
        elif is_one:
            user.replace_all_uses_with(called)
        else:
            user.args = (called, number - 1)
