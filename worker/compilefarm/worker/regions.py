"""Regions that are compiled once (`torch.compiler.nested_compile_region`), called as other modules are, where torch
cannot do otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch.fx import GraphModule, Node

from compilefarm.graph.targets import higher_order_operators, nodes_of


def call_all_regions(graph_module: GraphModule) -> None:
    """Has a graph call its regions as modules, as the program calls them that it was captured from: torch 2.11 runs its
    operator for regions on fake tensors alone where gradients are wanted (torch/_higher_order_ops/invoke_subgraph.py).
    """
    _call_as_modules(_regions_in(graph_module))


def call_inner_regions(graph_module: GraphModule) -> None:
    """Has a graph call as modules all regions but those that it calls itself and that hold no graph.

    Torch saves a backward as its source, and reads that by running it on proxies, which operators with graphs do not
    take (torch/fx/graph_module.py: _deserialize_graph_module): it must not have a graph within a graph.
    """
    _call_as_modules(node for node in _regions_in(graph_module) if node.graph.owning_module is not graph_module)
    _call_as_modules(node for node in _regions_in(graph_module) if _holds_graph(node))


def _regions_in(graph_module: GraphModule) -> list[Node]:
    operator = higher_order_operators().get("invoke_subgraph")
    return [node for node in nodes_of(graph_module) if node.target is operator]


def _holds_graph(region: Node) -> bool:
    """Whether a region hands a graph to an operator. Graphs within a graph hold nothing else than graphs."""
    owner, body = region.graph.owning_module, region.args[0]
    assert owner is not None
    assert isinstance(body, Node)
    return any(node.op == "get_attr" for node in nodes_of(getattr(owner, str(body.target))))


def _call_as_modules(regions: Iterable[Node]) -> None:
    changed: set[GraphModule] = set()
    for node in regions:
        graph, (body, _, *given) = node.graph, node.args
        assert graph.owning_module is not None
        assert isinstance(body, Node)
        with graph.inserting_before(node):
            called = graph.call_module(str(body.target), tuple(given))
        called.meta.update(node.meta)
        node.replace_all_uses_with(called)
        graph.erase_node(node)
        if not body.users:
            graph.erase_node(body)
        changed.add(graph.owning_module)
    for module in changed:
        module.recompile()
