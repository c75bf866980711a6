"""Bags of embeddings whose offsets a graph computes, and rows that it repeats as often as it computes: as sums and
selections by indices.

Kernels for them believe offsets and repeats (compilefarm.graph.offsets); indices are asserted wherever a program of a
farm reads or writes. What torch refuses, a program refuses as well: it asserts what kernels believe.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Graph, GraphModule, Node, Proxy
from torch.fx.proxy import GraphAppendingTracer

from compilefarm.graph.offsets import find_computed
from compilefarm.graph.rewriting import Copies, rewritten
from compilefarm.torch_internals.operators import assert_when_run

_BAGS = signature(F.embedding_bag)
_OFFSETS = "offsets of embedding_bag have to begin with 0, to increase, and to end within its input"
_REPEATS = "repeats have to be positive or 0, and to add up to the output_size of repeat_interleave"


def with_safe_offsets(graph_module: GraphModule) -> GraphModule:
    """A graph that believes no such numbers, as far as it can be said; the graph itself if there are none."""
    writers = {node: writer for node in graph_module.graph.nodes if (writer := _writer_of(node)) is not None}

    def write(graph: Graph, node: Node, copies: Copies) -> Node:
        tracer = GraphAppendingTracer(graph)
        made = writers[node]({each: Proxy(copies[each], tracer) for each in node.all_input_nodes}).node
        made.meta["example_value"] = node.meta.get("example_value")
        return made

    return rewritten(graph_module, is_rewritten=writers.__contains__, write=write)


_Given = Mapping[Node, Any]


def _writer_of(node: Node) -> Callable[[_Given], Proxy] | None:
    """What writes the same without numbers that kernels believe; None if there are none, or it cannot be said."""
    if node.target is F.embedding_bag and find_computed(node, "embedding_bag"):
        arguments = _BAGS.bind(*node.args, **node.kwargs)
        arguments.apply_defaults()
        return _bags_of(arguments.arguments)
    if node.target in ("repeat_interleave", torch.repeat_interleave) and find_computed(node, "repeat_interleave"):
        return _repetition_of(node)
    return None


def _bags_of(told: Mapping[str, Any]) -> Callable[[_Given], Proxy] | None:
    indices, weight, offsets, weights = (told[name] for name in ("input", "weight", "offsets", "per_sample_weights"))
    has_more = told["max_norm"] is not None or told["scale_grad_by_freq"] or told["sparse"]
    if has_more or not all(map(_is_tensor, (indices, weight, offsets))):
        return None
    reduce = _REDUCTIONS.get(told["mode"])
    dtype = _value(weight).dtype
    if reduce is None or not dtype.is_floating_point:
        return None
    padding = told["padding_idx"]

    def write(given: _Given) -> Proxy:
        bags = _bags(given[offsets], given[indices], like=_value(offsets))
        found = _widened(F.embedding(given[indices], given[weight], padding), dtype)
        if weights is not None:
            found = found * _widened(given[weights], dtype).unsqueeze(1)
        is_padding = None if padding is None else given[indices].eq(_from_begin(padding, given[weight]))
        result = reduce(found, is_padding, bags, given[offsets].size(0))
        if told["include_last_offset"]:
            result = result[:-1]
        return result.to(dtype) if _is_narrow(dtype) else result

    return write


def _widened(tensor: Proxy, dtype: torch.dtype) -> Proxy:
    """As kernels add numbers of narrow types."""
    return tensor.float() if _is_narrow(dtype) else tensor


def _is_narrow(dtype: torch.dtype) -> bool:
    bits: int = torch.finfo(dtype).bits
    return bits < 32


def _sums(found: Proxy, is_padding: Proxy | None, bags: Proxy, number: Any) -> Proxy:
    if is_padding is not None:
        # Whatever stands there, and be it no number.
        found = found.masked_fill(is_padding.unsqueeze(1), 0.0)
    return found.new_zeros((number, found.size(1))).index_add(0, bags, found)


def _means(found: Proxy, is_padding: Proxy | None, bags: Proxy, number: Any) -> Proxy:
    sums = _sums(found, is_padding, bags, number)
    counted = torch.ones_like(bags) if is_padding is None else is_padding.logical_not().long()
    return sums / counted.new_zeros((number,)).index_add(0, bags, counted).clamp(min=1).unsqueeze(1)


def _largest(found: Proxy, is_padding: Proxy | None, bags: Proxy, number: Any) -> Proxy:
    """The largest of each bag, and 0 of one without rows. Gradients are of the first that is as large, as kernels have
    it.
    """
    width, behind = found.size(1), bags.size(0)
    places = bags.unsqueeze(1).expand(-1, width)
    values = found.detach()
    if is_padding is not None:
        values = values.masked_fill(is_padding.unsqueeze(1), -math.inf)
    largest = values.new_full((number, width), -math.inf).scatter_reduce(0, places, values, "amax")
    # What is no number is larger than all.
    is_smaller = values.eq(largest.index_select(0, bags)).logical_or(values.isnan()).logical_not()
    if is_padding is not None:
        is_smaller = is_smaller.logical_or(is_padding.unsqueeze(1))
    rows = (torch.ones_like(bags).cumsum(0) - 1).unsqueeze(1).expand(-1, width).masked_fill(is_smaller, behind)
    first = rows.new_full((number, width), behind).scatter_reduce(0, places, rows, "amin")
    # The row behind all others is for bags without any.
    return torch.cat([found, found.new_zeros((1, width))]).gather(0, first)


_REDUCTIONS = {"sum": _sums, "mean": _means, "max": _largest}


def _bags(offsets: Proxy, indices: Proxy, *, like: torch.Tensor) -> Proxy:
    """The bag of each index: the last that begins before it. Those behind the last offset are in a bag of their own
    where it is included.
    """
    places = torch.ones_like(indices).cumsum(0).to(like.dtype) - 1
    increase = offsets[:1].eq(0).all() & offsets.diff().ge(0).all()
    assert_when_run(increase & offsets[-1:].le(indices.size(0)).all(), _OFFSETS)
    return torch.searchsorted(offsets, places, right=True) - 1


def _from_begin(row: int, weight: Proxy) -> Any:
    return row if row >= 0 else weight.size(0) + row


def _repetition_of(node: Node) -> Callable[[_Given], Proxy] | None:
    told = dict(zip(("input", "repeats", "dim"), node.args, strict=False)) | dict(node.kwargs)
    repeated, repeats, dim, size = (told.get(name) for name in ("input", "repeats", "dim", "output_size"))
    if not (_is_tensor(repeated) and _is_tensor(repeats) and isinstance(size, int | Node)):
        return None
    dim = 0 if dim is None and _value(repeated).dim() == 1 else dim
    # A single number is for all.
    if not isinstance(dim, int) or _value(repeats).shape != _value(repeated).shape[dim : dim + 1 or None]:
        return None

    def write(given: _Given) -> Proxy:
        ends = given[repeats].cumsum(0)
        places = ends.new_ones((given.get(size, size),)).cumsum(0) - 1
        assert_when_run(given[repeats].ge(0).all() & ends[-1:].eq(places.size(0)).all(), _REPEATS)
        return given[repeated].index_select(dim, torch.searchsorted(ends, places, right=True))

    return write


def _is_tensor(given: object) -> bool:
    return isinstance(given, Node) and isinstance(_value(given), torch.Tensor)


def _value(node: Node) -> Any:
    return node.meta.get("example_value")
