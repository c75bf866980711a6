"""Attention in graphs of plain tensors: as the function where its result is all that is used, and without seeds.

Tensors on a GPU are fake ones.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from compilefarm.graph.decode import decode_job
from compilefarm.graph.encode import encode_job
from compilefarm.graph.plain_attention import leave_choice_open, leave_out_seeds
from compilefarm.graph.testing import fixed_environment
from compilefarm.torch_internals.fake_tensors import FakeTensorMode

aten: Any = torch.ops.aten
Heads = tuple[torch.Tensor, torch.Tensor, torch.Tensor]

_FLASH: Any = aten._scaled_dot_product_flash_attention
_EFFICIENT: Any = aten._scaled_dot_product_efficient_attention
_CUDNN: Any = aten._scaled_dot_product_cudnn_attention


def _heads(device: str, *, shared: int = 1) -> Heads:
    sizes = ((4, 5), (4 // shared, 6), (4 // shared, 6))
    query, key, value = (torch.randn(2, heads, length, 8, device=device) for heads, length in sizes)
    return query, key, value


def _traced(function: Callable[..., Any], *, shared: int = 1) -> GraphModule:
    with FakeTensorMode(), torch.no_grad():
        return make_fx(function)(*_heads("cuda", shared=shared))


def _targets(graph_module: GraphModule) -> list[str]:
    return [str(node.target) for node in graph_module.graph.nodes if node.op == "call_function"]


def _attended(query: Any, key: Any, value: Any, *, bias: Any = 0.0, scale: float | None = None) -> torch.Tensor:
    """What attention is, written out."""
    scores = query @ key.mT * (scale or 1 / math.sqrt(query.shape[-1])) + bias
    result: torch.Tensor = scores.softmax(-1) @ value
    return result


_MASK = torch.full((5, 6), -math.inf).triu(1)


@pytest.mark.parametrize(
    ("chosen", "expected", "shared"),
    [
        (lambda q, k, v: _FLASH(q, k, v)[0], _attended, 1),
        (
            lambda q, k, v: _FLASH(q, k, v, 0.0, True, scale=0.3)[0],
            lambda *qkv: _attended(*qkv, bias=_MASK, scale=0.3),
            1,
        ),
        (
            lambda q, k, v: _FLASH(q, k, v)[0],
            lambda q, *kv: _attended(q, *(each.repeat_interleave(2, 1) for each in kv)),
            2,
        ),
        (lambda q, k, v: _EFFICIENT(q, k, v, None, False)[0], _attended, 1),
        (lambda q, k, v: _EFFICIENT(q, k, v, q.new_ones(1).expand(2, 4, 5, 6), False)[0], _attended, 1),
        (lambda q, k, v: _EFFICIENT(q, k, v, None, False, 0.0, True)[0], lambda *qkv: _attended(*qkv, bias=_MASK), 1),
        (lambda q, k, v: _CUDNN(q, k, v, None, False, scale=2.0)[0], lambda *qkv: _attended(*qkv, scale=2.0), 1),
    ],
)  # fmt: skip
def test_a_result_that_is_all_that_is_used_is_that_of_the_function(
    chosen: Callable[..., Any], expected: Callable[..., torch.Tensor], shared: int
) -> None:
    graph = _traced(lambda *heads: chosen(*heads) * 2, shared=shared)
    leave_choice_open(graph)
    assert not any("_scaled_dot_product" in target for target in _targets(graph))
    heads = _heads("cpu", shared=shared)
    # Its other tensors lie on a GPU.
    for node in graph.graph.nodes:
        node.kwargs = {**node.kwargs, "device": "cpu"} if "device" in node.kwargs else node.kwargs
    graph.recompile()
    torch.testing.assert_close(graph(*heads), expected(*heads) * 2)


def test_what_becomes_of_it_travels() -> None:
    graph = _traced(lambda q, k, v: (_EFFICIENT(q, k, v, None, False)[0].sum(-1),))
    leave_choice_open(graph)
    for node in graph.graph.nodes:
        node.meta = {"example_value": node.meta.get("val")}
    with FakeTensorMode():
        given = list(_heads("cuda"))
    decode_job(encode_job(graph, given, options={}, environment=fixed_environment).job, blobs={})


def test_what_gradients_need_is_kept() -> None:
    graph = _traced(lambda q, k, v: _FLASH(q, k, v)[:2])
    leave_choice_open(graph)
    assert "aten._scaled_dot_product_flash_attention.default" in _targets(graph)


def _both_passes(kind: str, *, dropout: float) -> Callable[..., Any]:
    def passes(query: Any, key: Any, value: Any) -> Any:
        if kind == "efficient":
            out, sums, *seeds = _EFFICIENT(query, key, value, None, True, dropout)
            mask = [True, True, True, False]
            return out, aten._scaled_dot_product_efficient_attention_backward(
                out * 2, query, key, value, None, out, sums, *seeds, dropout, mask
            )[:3]
        if kind == "flash":
            out, sums, *rest = _FLASH(query, key, value, dropout)
            return out, aten._scaled_dot_product_flash_attention_backward(
                out * 2, query, key, value, out, sums, *rest[:4], dropout, False, *rest[4:6]
            )
        out, sums, *rest = _CUDNN(query, key, value, None, True, dropout)
        return out, aten._scaled_dot_product_cudnn_attention_backward(
            out * 2, query, key, value, out, sums, *rest[4:6], None, *rest[:4], dropout, False
        )

    return passes


@pytest.mark.parametrize("kind", ["cudnn", "efficient", "flash"])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_seeds_are_kept_where_something_is_dropped(kind: str, *, dropout: float) -> None:
    graph = _traced(_both_passes(kind, dropout=dropout))
    (forward,) = (node for node in graph.graph.nodes if str(node.target).endswith("attention.default"))
    before = {node.args[1] for node in forward.users}
    leave_out_seeds(graph)
    after = {node.args[1] for node in forward.users if node.target is operator.getitem}
    seeds = {2, 3} if kind == "efficient" else {6, 7}
    assert after == (before if dropout else before - seeds)
    assert seeds <= before
    assert ("aten.zeros.default" in _targets(graph)) == (not dropout)
