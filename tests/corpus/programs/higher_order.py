"""Operators that take functions, which Dynamo captures as graphs of their own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._higher_order_ops import associative_scan, scan, wrap
from torch._higher_order_ops import map as map_rows
from torch._higher_order_ops.while_loop import while_loop
from torch.func import functional_call, grad, hessian, jvp, vmap
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from tests.corpus.program import Case, Lacking, Program, backpropagating, call, plainly, simple

from .training import mlp


def _rows() -> tuple[torch.Tensor]:
    return (torch.randn(5, 8),)


def _tracked_rows() -> tuple[torch.Tensor]:
    return (torch.randn(5, 8, requires_grad=True),)


def _cond(x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = torch.cond(x.sum() > 0, lambda x: x.sin() * 2, lambda x: x.cos() - 1, (x,))
    return result


def _cond_nested(x: torch.Tensor) -> torch.Tensor:
    bias = x.mean(0)

    def inner(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.cond(x.max() > 1, lambda x: x + bias, lambda x: x - bias, (x,))
        return result

    result: torch.Tensor = torch.cond(x.sum() > 100, lambda x: x.clone(), inner, (x,))
    return result


def _switch(x: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, ...]:
    def swapped(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return y * 2, x.relu()

    branches = (lambda x, y: (x.sin(), y.cos()), swapped, lambda x, y: (x + y, x - y))
    switch: Any = vars(torch._higher_order_ops)["switch"]
    result: tuple[torch.Tensor, ...] = switch(index, branches, (x, x + 1))
    return result


def _of_each_branch(rows: Callable[[], tuple[torch.Tensor, ...]]) -> Callable[[], Case]:
    """The last number is none of a branch: torch takes the nearest."""

    def build() -> Case:
        if not hasattr(torch._higher_order_ops, "switch"):
            raise Lacking("switch is of a later torch")
        calls = [call(*rows(), torch.tensor(index)) for index in (0, 1, 2, 7)]
        return Case(function=_switch, calls=calls, use=backpropagating if calls[0].args[0].requires_grad else plainly)

    return build


def _while_loop(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    def goes_on(step: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        return step < 3

    def body(step: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return step + 1, x.tanh() * 1.5

    result: tuple[torch.Tensor, ...] = while_loop(goes_on, body, (torch.tensor(0), x))
    return result


def _map(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = map_rows(lambda row, scale: row * scale.exp(), x, scale)
    return result


def _scan(x: torch.Tensor) -> Any:
    def step(carry: torch.Tensor, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        carry = carry * 0.5 + row
        return carry, carry.relu()

    return scan(step, torch.zeros(8), x, dim=0)


def _associative_scan(x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = associative_scan(lambda a, b: a * b + 0.5, x, dim=0, combine_mode="generic")
    return result


def _score(score: torch.Tensor, _: Any, head: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return score + (q - k) * 0.1 * (head + 1)


def _flex_scores(q: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = flex_attention(q, q, q, score_mod=_score)
    return result


def _flex_mask(q: torch.Tensor) -> torch.Tensor:
    window = torch.tensor(20)

    def mask(_: Any, __: Any, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return (q >= k) & (q - k < window)

    block_mask = create_block_mask(mask, None, None, q.shape[2], q.shape[2], device="cpu")
    result: torch.Tensor = flex_attention(q, q, q, block_mask=block_mask, scale=0.3)
    return result


def _flex_captures(q: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    def score(score: torch.Tensor, _: Any, head: torch.Tensor, __: Any, k: torch.Tensor) -> torch.Tensor:
        return torch.tanh(score / 5) * 5 + bias[head, k]

    result: torch.Tensor = flex_attention(q, q, q, score_mod=score)
    return result


def _queries() -> tuple[torch.Tensor]:
    return (torch.randn(1, 2, 128, 16),)


@torch.compiler.nested_compile_region
def _region(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(x @ weight) * x


def _regions(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        x = _region(x, weight)
    return x + 1


def _matrices() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(4, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)


class _Clipped(torch.autograd.Function):
    """Exact forward, gradient of its own."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, limit: float) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.limit = limit
        return x.clamp(-limit, limit)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        (x,) = ctx.saved_tensors
        return gradient * (x.abs() < 2 * ctx.limit), None


def _autograd_function(x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = _Clipped.apply(x * 2, 0.5)
    return result.exp()


class _TwoResults(torch.autograd.Function):
    """Two outputs, of which one has no gradient; a static context that is set up apart."""

    @staticmethod
    def forward(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.sin(), x.argmax(-1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[torch.Tensor], output: tuple[torch.Tensor, torch.Tensor]) -> None:
        ctx.save_for_backward(*inputs)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, _: Any) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return gradient * x.cos()


def _autograd_function_of_two(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    result: tuple[torch.Tensor, torch.Tensor] = _TwoResults.apply(x)
    return result


def _wrap(x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = wrap.wrap(lambda x: x.sin() + x, x)
    return result * 2


def _wrap_grad_mode(x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = torch.ops.higher_order.wrap_with_set_grad_enabled(False, lambda x: x.sin() * 2, x)
    return result + x


def _wrap_autocast(x: torch.Tensor) -> torch.Tensor:
    operator = torch.ops.higher_order.wrap_with_autocast
    result: torch.Tensor = operator("cpu", torch.bfloat16, True, None, lambda x: x @ x.mT, x)
    return result


def _checkpointed(context: Callable[[], Any] | None = None, *, dropout: float = 0.0) -> Callable[[], Case]:
    def build() -> Case:
        layers = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 8))
        options = {} if context is None else {"context_fn": context}

        class Checkpointed(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layers = layers

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                result: torch.Tensor = checkpoint(self.layers, x.sin(), use_reentrant=False, **options)
                return result * 2

        return Case(function=Checkpointed(), calls=[call(*_tracked_rows())], use=backpropagating)

    return build


def _save_products(_: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    products = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
    return CheckpointPolicy.MUST_SAVE if operator in products else CheckpointPolicy.PREFER_RECOMPUTE


def _selective() -> Any:
    return create_selective_checkpoint_contexts(_save_products)


def _vmap(x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = vmap(lambda row: (row * x[0]).sum() / row.norm(), in_dims=0)(x)
    return result


def _vmap_random(x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = vmap(lambda row: row + torch.rand(8), randomness="different")(x)
    return result


def _grad(x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = grad(lambda x: (x.sin() * x).sum())(x)
    return result


def _per_sample_gradients() -> Case:
    model = mlp()

    def loss(parameters: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return functional_call(model, parameters, (x,)).square().mean()

    def function(x: torch.Tensor) -> Any:
        return vmap(grad(loss), in_dims=(None, 0))(dict(model.named_parameters()), x)

    return Case(function=function, calls=[call(torch.randn(3, 8))])


def _jvp(x: torch.Tensor) -> Any:
    return jvp(lambda x: x.tanh() * math.e, (x,), (torch.ones_like(x),))


def _hessian(x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = hessian(lambda x: x.cos().prod())(x[0])
    return result


PROGRAMS = (
    simple("cond", _cond, _rows),
    simple("cond_nested", _cond_nested, _rows),
    simple("cond_with_gradients", _cond, _tracked_rows, training=True),
    Program(name="switch", build=_of_each_branch(_rows)),
    Program(name="switch_with_gradients", build=_of_each_branch(_tracked_rows), training=True),
    simple("while_loop", _while_loop, _rows),
    simple("map", _map, lambda: (torch.randn(5, 8), torch.randn(8))),
    simple("scan", _scan, _rows),
    simple("scan_with_gradients", _scan, _tracked_rows, training=True),
    simple("associative_scan", _associative_scan, _rows),
    simple("flex_attention_scores", _flex_scores, _queries),
    simple("flex_attention_mask", _flex_mask, _queries),
    simple("flex_attention_captures", _flex_captures, lambda: (*_queries(), torch.randn(2, 128))),
    simple("nested_compile_region", _regions, _matrices),
    simple(
        "nested_compile_region_with_gradients",
        _regions,
        _matrices,
        training=True,
        # torch/_higher_order_ops/invoke_subgraph.py: its backward asked for a fake mode.
        eager=torch.__version__ >= "2.12",
    ),
    simple("autograd_function", _autograd_function, _tracked_rows, training=True),
    simple("autograd_function_of_two", _autograd_function_of_two, _tracked_rows, training=True),
    simple("wrap", _wrap, _rows),
    simple("wrap_grad_mode", _wrap_grad_mode, _tracked_rows, training=True),
    simple("wrap_autocast", _wrap_autocast, _rows),
    Program(name="checkpoint", build=_checkpointed(), training=True),
    Program(name="checkpoint_dropout", build=_checkpointed(dropout=0.5), training=True, random=True),
    Program(name="checkpoint_selective", build=_checkpointed(_selective), training=True),
    simple("vmap", _vmap, _rows),
    simple("vmap_random", _vmap_random, _rows, random=True),
    simple("grad", _grad, _rows),
    Program(name="per_sample_gradients", build=_per_sample_gradients),
    simple("jvp", _jvp, _rows),
    simple("hessian", _hessian, _rows),
)
