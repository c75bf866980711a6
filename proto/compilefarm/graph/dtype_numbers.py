"""Calls with numbers for dtypes, as torch writes them where it prints graphs, or C++ hands them over, and calls of
`x.type` with types of tensors (`x.type(y.type())`, `x.type(torch.FloatTensor)`): with dtypes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from compilefarm.graph.operators import overloads_of
from compilefarm.graph.rewriting import Copies, rewritten
from compilefarm.torch_internals.operators import OpOverload, OpOverloadPacket, schema_of

# c10/core/ScalarType.h. A number that stands for none is looked up all the same by torch, and never here.
_DTYPES = {
    0: torch.uint8,
    1: torch.int8,
    2: torch.int16,
    3: torch.int32,
    4: torch.int64,
    5: torch.float16,
    6: torch.float32,
    7: torch.float64,
    9: torch.complex64,
    10: torch.complex128,
    11: torch.bool,
    15: torch.bfloat16,
}
# torch/csrc/tensor/python_tensor.cpp
_OF_TYPES = {
    "ByteTensor": torch.uint8,
    "CharTensor": torch.int8,
    "ShortTensor": torch.int16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
    "HalfTensor": torch.float16,
    "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64,
    "BoolTensor": torch.bool,
    "BFloat16Tensor": torch.bfloat16,
}
_MODULES = {"cpu": "torch", "cuda": "torch.cuda"}


def with_named_dtypes(graph_module: GraphModule) -> GraphModule:
    """A graph that says dtypes by name; the graph itself if it does already."""
    return rewritten(graph_module, is_rewritten=_is_named_otherwise, write=_named)


def _is_named_otherwise(node: Node) -> bool:
    return bool(_numbered(node)) or _find_dtype_of_type(node) is not None


def _named(graph: Graph, node: Node, copies: Copies) -> Node:
    made = graph.node_copy(node, copies.__getitem__)
    made.kwargs = {**made.kwargs, **_numbered(node)}
    dtype = _find_dtype_of_type(node)
    if dtype is not None:
        made.args = (made.args[0], dtype)
    return made


def _find_dtype_of_type(node: Node) -> torch.dtype | None:
    """The dtype that a node gives as a type of tensors; None if it gives none, or another device with it."""
    if (node.op, node.target) != ("call_method", "type") or len(node.args) != 2 or node.kwargs:
        return None
    given, told = node.args
    value = given.meta.get("example_value") if isinstance(given, Node) else None
    if not isinstance(value, torch.Tensor) or not isinstance(told, str | type):
        return None
    module, _, name = (told if isinstance(told, str) else f"{told.__module__}.{told.__name__}").rpartition(".")
    return _OF_TYPES.get(name) if module == _MODULES.get(value.device.type) else None


def _numbered(node: Node) -> dict[str, torch.dtype]:
    """The dtypes that a node gives as numbers, by the names of arguments."""
    return {
        name: _DTYPES[value]
        for name, value in node.kwargs.items()
        if type(value) is int and value in _DTYPES and _is_dtype(node.target, name)
    }


def _is_dtype(target: Any, name: str) -> bool:
    """Whether what an operator calls so is a dtype."""
    overloads = overloads_of(target) if isinstance(target, OpOverloadPacket) else [target]
    declared = [
        each for overload in overloads if isinstance(overload, OpOverload) for each in schema_of(overload).arguments
    ]
    types = {str(argument.real_type) for argument in declared if argument.name == name}
    return bool(types) and types <= {"ScalarType", "Optional[ScalarType]"}
