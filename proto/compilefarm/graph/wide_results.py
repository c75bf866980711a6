"""`torch.ops.higher_order.out_dtype`: an operator whose result has a dtype of its own, as the calls that it amounts to.

The operator that it calls is an argument, which no request can say
(torch/_higher_order_ops/out_dtype.py: out_dtype_dense).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from compilefarm.graph.rewriting import Copies, rewritten
from compilefarm.torch_internals.operators import HigherOrderOperator


def with_plain_results(graph_module: GraphModule) -> GraphModule:
    """A graph that makes such calls itself; the graph itself if there are none."""
    return rewritten(graph_module, is_rewritten=_has_wide_result, write=_written_out)


def _has_wide_result(node: Node) -> bool:
    if not (isinstance(node.target, HigherOrderOperator) and node.target.name() == "out_dtype"):
        return False
    # Numbers, and tensors without dimensions, follow rules of their own; gradients, it has none.
    return not node.kwargs and all(map(_is_plain, _looks_of(node)))


def _is_plain(look: Any) -> bool:
    return isinstance(look, torch.Tensor) and look.dim() > 0 and not look.requires_grad


def _looks_of(node: Node) -> Sequence[Any]:
    return [each.meta.get("example_value") if isinstance(each, Node) else None for each in node.args[2:]]


def _written_out(graph: Graph, node: Node, copies: Copies) -> Node:
    target: Any
    target, dtype, *args = node.args
    looks = _looks_of(node)
    if _are_integers_on_gpu(looks) and dtype == torch.int32 and target is torch.ops.aten.mm.default:
        return _noted(graph.call_function(torch.ops.aten._int_mm.default, tuple(map(copies.__getitem__, args))), node)
    wide = functools.reduce(torch.promote_types, (look.dtype for look in looks), dtype)
    given = [_cast(graph, copies[each], look, wide) for each, look in zip(args, looks, strict=True)]
    result = graph.call_function(target, tuple(given))
    result.meta["example_value"] = node.meta["example_value"].to(wide)
    return _noted(graph.call_method("to", (result, dtype)), node)


def _are_integers_on_gpu(looks: Sequence[torch.Tensor]) -> bool:
    return all(look.dtype == torch.int8 and look.is_cuda for look in looks)


def _cast(graph: Graph, node: Node, look: torch.Tensor, dtype: torch.dtype) -> Node:
    cast = graph.call_method("to", (node, dtype))
    cast.meta["example_value"] = look.to(dtype)
    return cast


def _noted(node: Node, like: Node) -> Node:
    node.meta = dict(like.meta)
    return node
