"""`torch.Tensor([1.0])`, `torch.LongTensor([3])`: tensors of a type that are made of numbers, as torch.tensor does.

No request can say a type, and of sizes these make tensors whose elements are whatever lay in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from compilefarm.graph.rewriting import Copies, rewritten, value_of

# Their elements lie on the CPU; torch.Tensor has the default dtype.
_DTYPES: Mapping[object, torch.dtype | None] = {
    torch.Tensor: None,
    torch.FloatTensor: torch.float32,
    torch.DoubleTensor: torch.float64,
    torch.LongTensor: torch.int64,
    torch.IntTensor: torch.int32,
    torch.BoolTensor: torch.bool,
}
_INTEGERS: tuple[type, ...] = (int, torch.SymInt)
_REALS: tuple[type, ...] = (*_INTEGERS, float, torch.SymFloat)
_NUMBERS: Mapping[torch.dtype, tuple[type, ...]] = {torch.bool: (bool,)}


def with_plain_constructors(graph_module: GraphModule) -> GraphModule:
    """A graph that makes such tensors by torch.tensor; the graph itself if there are none."""
    return rewritten(graph_module, is_rewritten=_is_typed, write=_plain)


def _plain(graph: Graph, node: Node, copies: Copies) -> Node:
    dtype = _DTYPES[node.target] or torch.get_default_dtype()
    made = graph.node_copy(node, copies.__getitem__)
    made.target, made.kwargs = torch.tensor, {"dtype": dtype, "device": torch.device("cpu")}
    return made


def _is_typed(node: Node) -> bool:
    if node.op != "call_function" or node.target not in _DTYPES or node.kwargs or len(node.args) != 1:
        return False
    return _are_numbers(node.args[0], node.target)


def _are_numbers(given: Any, kind: object) -> bool:
    """Whether a list, or lists in it, hold numbers that the type takes as they are."""
    if not isinstance(given, list | tuple) or not given:
        return False
    dtype = _DTYPES[kind] or torch.float32
    taken = _NUMBERS.get(dtype, _REALS if dtype.is_floating_point else _INTEGERS)
    return all(isinstance(value_of(each), taken) or _are_numbers(each, kind) for each in given)
