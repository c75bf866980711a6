"""How a graph takes its arguments: by name, with defaults, and nested as torch.export has written down."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.fx import Graph, GraphModule
from torch.fx.graph import CodeGen, _PyTreeCodeGen  # torch/fx/graph.py

__all__ = ["flattening_of", "nesting_of", "nests_arguments"]


def nests_arguments(graph_module: GraphModule) -> bool:
    """Whether a graph takes or returns values that are nested otherwise than its own nodes have them."""
    return isinstance(graph_module.graph._codegen, _PyTreeCodeGen)


def flattening_of(graph_module: GraphModule) -> Callable[..., Sequence[Any]]:
    """Returns what takes the arguments of a graph and gives one value for each placeholder.

    Torch writes it, as it writes how the graph itself is called, so that the same calls are right or wrong.
    """
    codegen = graph_module.graph._codegen
    if type(codegen) not in (CodeGen, _PyTreeCodeGen):
        # Graphs of a compiler, that take values one by one whatever torch would write of them.
        return lambda *values: values
    graph = Graph()
    graph.output(tuple(map(graph.node_copy, graph_module.graph.find_nodes(op="placeholder"))))
    if type(codegen) is _PyTreeCodeGen:
        graph.set_codegen(_PyTreeCodeGen(codegen.pytree_info._replace(out_spec=None)))
    taking: Callable[..., Sequence[Any]] = GraphModule({}, graph).forward
    return taking


def nesting_of(graph_module: GraphModule) -> Callable[[Any], Any]:
    """Returns what nests the values that a graph returns as those are nested that its callers see."""
    nest: Callable[[Any], Any] = graph_module.graph._codegen.process_outputs
    return nest
