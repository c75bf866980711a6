"""Sizes and numbers that are not known when a program is compiled."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from tests.corpus.program import Call, Case, Function, Program, backpropagating, call, plainly

_scalars = partial(torch._dynamo.config.patch, capture_scalar_outputs=True)
_shapes = partial(torch._dynamo.config.patch, capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True)
_floats = partial(torch._dynamo.config.patch, specialize_float=False)


def _program(
    name: str,
    function: Function,
    calls: Callable[[], list[Call]],
    *,
    training: bool = False,
    **flags: Any,
) -> Program:
    use = backpropagating if training else plainly
    return Program(name=name, build=lambda: Case(function=function, calls=calls(), use=use), training=training, **flags)


def _growing() -> list[Call]:
    return [call(torch.randn(rows, 4)) for rows in (5, 6, 9)]


def _one() -> list[Call]:
    return [call(torch.randn(5, 4))]


def _marked(**bounds: int) -> Callable[[], list[Call]]:
    def calls() -> list[Call]:
        x = torch.randn(5, 4)
        torch._dynamo.mark_dynamic(x, 0, **bounds)
        return [call(x), call(torch.randn(7, 4))]

    return calls


def _unbacked() -> list[Call]:
    x = torch.randn(5, 4)
    torch._dynamo.decorators.mark_unbacked(x, 0)
    return [call(x)]


def _affine(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).sum(1) + x.shape[0]


def _expressions(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    rows, columns = x.shape
    doubled = torch.zeros(rows * 2 + 1, columns).narrow(0, 1, rows) + x
    wide = max(rows, columns) - min(rows, columns) + rows // 2 + (rows % 3)
    return (
        doubled,
        x.new_ones(wide),
        x.reshape(-1),
        x.expand(2, rows, columns),
        torch.arange(rows),
        x.view(rows * columns) / rows,
    )


def _branches(x: torch.Tensor) -> torch.Tensor:
    return x.sin() if x.shape[0] < 8 else x.cos()


def _padded(x: torch.Tensor) -> torch.Tensor:
    return nn.functional.pad(x, (0, 0, 0, -x.shape[0] % 8)).view(-1, 8, 4).mean(0)


def _integer(x: torch.Tensor, count: int) -> torch.Tensor:
    return x[:count] * count


def _real(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x * factor + factor


def _item(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return x * scale.item() + 1


def _item_as_size(x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    size = count.item()
    torch._check(size >= 0)
    torch._check(size <= x.shape[0])
    return torch.zeros(size, 4) + x[0]


def _nonzero(x: torch.Tensor) -> torch.Tensor:
    return torch.nonzero(x > 0).sum(0) + 1


def _masked(x: torch.Tensor) -> torch.Tensor:
    return x[x[:, 0] > 0] * 2


def _repeated(x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    return x.repeat_interleave(counts, dim=0).cumsum(0)


def _several_items(x: torch.Tensor, sizes: torch.Tensor) -> list[torch.Tensor]:
    first, second = sizes.tolist()
    torch._check(first >= 0)
    torch._check(second >= 0)
    torch._check(first + second == x.shape[0])
    return [part * 2 for part in torch.split(x, [first, second])]


def _attending() -> Case:
    layer = nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, dropout=0.0, batch_first=True)
    return Case(function=layer, calls=[call(torch.randn(2, length, 8)) for length in (5, 6, 9)], use=backpropagating)


def _convolving() -> Case:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1)).eval()
    return Case(function=model, calls=[call(torch.randn(batch, 3, size, size)) for batch, size in ((2, 8), (3, 10))])


PROGRAMS = (
    _program("automatic_dynamic", _affine, _growing),
    _program("mark_dynamic", _affine, _marked()),
    _program("mark_dynamic_within_bounds", _affine, _marked(min=2, max=16)),
    _program("mark_unbacked", lambda x: x * 2 + 1, _unbacked),
    _program("dynamic_from_the_start", _affine, _growing, dynamic=True),
    _program(
        "dynamic_training",
        lambda x: x.sin().mean(0),
        lambda: [call(torch.randn(rows, 4, requires_grad=True)) for rows in (5, 6)],
        dynamic=True,
        training=True,
    ),
    _program("size_expressions", _expressions, _growing, dynamic=True),
    _program("size_branches", _branches, _growing, dynamic=True),
    _program("padded_to_a_multiple", _padded, _growing, dynamic=True),
    _program("integer_input", _integer, lambda: [call(torch.randn(5, 4), count) for count in (3, 4, 2)], dynamic=True),
    _program(
        "real_input", _real, lambda: [call(torch.randn(5), factor) for factor in (0.5, 1.5, 2.5)], context=_floats
    ),
    _program(
        "item",
        _item,
        lambda: [call(torch.randn(5), torch.tensor(2.5)), call(torch.randn(5), torch.tensor(3))],
        context=_scalars,
    ),
    _program("item_as_size", _item_as_size, lambda: [call(torch.randn(5, 4), torch.tensor(3))], context=_scalars),
    _program(
        "several_items", _several_items, lambda: [call(torch.randn(5, 4), torch.tensor([2, 3]))], context=_scalars
    ),
    _program("nonzero", _nonzero, _one, context=_shapes),
    _program("boolean_mask", _masked, _one, context=_shapes),
    _program(
        "repeat_interleave", _repeated, lambda: [call(torch.randn(3, 4), torch.tensor([1, 0, 2]))], context=_shapes
    ),
    Program(name="dynamic_attention", build=_attending, dynamic=True, training=True),
    Program(name="dynamic_convolution", build=_convolving, dynamic=True),
)
