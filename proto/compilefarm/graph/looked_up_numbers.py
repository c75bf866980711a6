"""`torch.isin(3, x)`: an integer that is looked for, as a tensor.

Torch's decomposition makes a float of it, which has no room for large ones, and Inductor an integer again
(torch/_decomp/decompositions.py: isin); kernels compare integers (aten/src/ATen/native/TensorCompare.cpp).
"""

from __future__ import annotations

import torch
from torch.fx import Graph, GraphModule, Node

from compilefarm.graph.rewriting import Copies, rewritten, value_of

_INTEGERS = (int, torch.SymInt)


def with_tensors_looked_up(graph_module: GraphModule) -> GraphModule:
    """A graph that looks for tensors; the graph itself if it does already."""
    return rewritten(graph_module, is_rewritten=_looks_for_integer, write=_looking_for_tensor)


def _looks_for_integer(node: Node) -> bool:
    if node.target is not torch.isin or len(node.args) != 2 or not isinstance(value_of(node.args[1]), torch.Tensor):
        return False
    number = value_of(node.args[0])
    return isinstance(number, _INTEGERS) and not isinstance(number, bool)


def _looking_for_tensor(graph: Graph, node: Node, copies: Copies) -> Node:
    number, elements = node.args
    device = value_of(elements).device
    given = copies[number] if isinstance(number, Node) else number
    tensor = graph.call_function(torch.full, ((), given), {"dtype": torch.int64, "device": device})
    tensor.meta["example_value"] = value_of(elements).new_empty((), dtype=torch.int64)
    made = graph.node_copy(node, copies.__getitem__)
    made.args = (tensor, *made.args[1:])
    return made
