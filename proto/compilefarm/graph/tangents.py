"""Zeros that forward derivatives begin with (torch.func.linearize): torch makes them as large as the memory that their
tensor lies in, and a farm takes no operator that looks at that. Of a tensor that fills its memory in order they are
zeros like it.
"""

from __future__ import annotations

import torch
from torch.fx import Graph, GraphModule, Node

from compilefarm.graph.rewriting import Copies, rewritten
from compilefarm.torch_internals.operators import OpOverload

# aten/src/ATen/native/TensorFactories.cpp
_ZEROS = "aten::_new_zeros_with_same_feature_meta"


def with_plain_tangents(graph_module: GraphModule) -> GraphModule:
    """A graph that makes such zeros by torch.zeros_like; the graph itself if there are none."""
    return rewritten(graph_module, is_rewritten=_makes_zeros, write=_zeros_like)


def _zeros_like(graph: Graph, node: Node, copies: Copies) -> Node:
    zeros = graph.node_copy(node, copies.__getitem__)
    zeros.target, zeros.args = torch.zeros_like, zeros.args[1:]
    return zeros


def _makes_zeros(node: Node) -> bool:
    """Whether a node does, for a tensor without dimensions of a batch before its own."""
    if not isinstance(node.target, OpOverload) or node.target.name() != _ZEROS or node.kwargs or len(node.args) != 2:
        return False
    like = node.args[1].meta.get("example_value") if isinstance(node.args[1], Node) else None
    return isinstance(like, torch.Tensor) and like.is_contiguous()
