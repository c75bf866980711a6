"""Graphs in which some nodes are written otherwise, before they are sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.fx import Graph, GraphModule, Node

# The nodes of the copy, by those that they stand for.
Copies = dict[Node, Any]


def value_of(given: Any) -> Any:
    """What an argument of a node stands for where the graph runs on fake tensors; a literal stands for itself."""
    return given.meta.get("example_value") if isinstance(given, Node) else given


def copied(graph_module: GraphModule) -> GraphModule:
    """A copy of a graph, on the same tensors and modules."""
    graph, copies = Graph(), Copies()
    for node in graph_module.graph.nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    return GraphModule(graph_module, graph)


def rewritten(
    graph_module: GraphModule,
    *,
    is_rewritten: Callable[[Node], bool],
    write: Callable[[Graph, Node, Copies], Any],
) -> GraphModule:
    """A copy of a graph with some nodes written otherwise; the graph itself if there are none.

    Args:
        graph_module: the graph.
        is_rewritten: whether a node is one of them.
        write: writes into the copy what stands for such a node, and returns it.
    """
    if not any(map(is_rewritten, graph_module.graph.nodes)):
        return graph_module
    graph, copies = Graph(), Copies()
    for node in graph_module.graph.nodes:
        copies[node] = write(graph, node, copies) if is_rewritten(node) else graph.node_copy(node, copies.__getitem__)
    return GraphModule(graph_module, graph)
