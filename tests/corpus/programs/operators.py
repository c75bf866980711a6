"""Everything that a node may call: operators, functions, methods, custom operators."""

from __future__ import annotations

import functools
import math
import operator
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tests.corpus.program import Case, Program, call, require_module, simple


def _square() -> tuple[torch.Tensor]:
    return (torch.randn(4, 4),)


def _overloads(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    aten = torch.ops.aten
    return (
        aten.add.Tensor(x, x, alpha=2),
        aten.relu.default(x),
        aten.sum.dim_IntList(x, [1], True),
        *aten.topk.default(x, 2),
    )


def _packets(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.ops.aten.add(x, 1), torch.ops.aten.mean(x, [0]), torch.ops.prims.sin(x)


@torch.library.custom_op("corpus::scaled", mutates_args=())
def _scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x * factor


@_scaled.register_fake
def _(x: torch.Tensor, factor: float) -> torch.Tensor:
    return torch.empty_like(x)


def _custom_operator(x: torch.Tensor) -> torch.Tensor:
    scaled: torch.Tensor = torch.ops.corpus.scaled(x, 3.0)
    return scaled + 1


def _methods(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x.clone().mul_(2).add_(1.0).clamp_(-1, 1)
    y.fill_diagonal_(0.5).index_fill_(0, torch.tensor([1]), 2.0)
    return y, x.softmax(-1).argmax(dim=1), x.masked_fill(x > 0, -1.0), x.unfold(0, 2, 1), x.type_as(y.double())


def _python_operators(x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, ...]:
    floats = -x + 2 - x * x / 3 // 1 % 2 + abs(x) ** 2 + 1 / (x * x + 1)
    integers = (n << 1 | 1) & 7 ^ ~n >> 1
    return floats @ x, integers, (x < 0) == (x <= 0), operator.itemgetter(0)(x), +x, pow(2, x)


def _in_place_operators(x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x = x.clone()
    x += 1
    x -= 0.5
    x *= x
    x /= 2
    x **= 2
    x //= 0.5
    n = n.clone()
    n |= 1
    n &= 6
    n ^= 3
    n <<= 1
    n >>= 1
    x[0], x[1:, ::2] = 1.5, x[1:, ::2] + 1
    x[n > 3] = 0.0
    return x, n


def _spectra(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    spectrum = torch.fft.rfft2(x, norm="ortho")
    short = torch.stft(x.flatten(), 8, hop_length=4, window=torch.hann_window(8), return_complex=True)
    return spectrum.abs(), torch.fft.irfft2(spectrum, s=x.shape), torch.fft.fftshift(x), short.abs()


def _linear_algebra(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    positive = x @ x.mT + 4 * torch.eye(4)
    factor = torch.linalg.cholesky(positive)
    solved = torch.linalg.solve(positive, x)
    q, r = torch.linalg.qr(x)
    return factor, solved, (q @ r), torch.linalg.det(positive), torch.linalg.norm(x, ord="fro"), torch.logdet(positive)


def _special_functions(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (
        torch.special.expit(x),
        torch.special.erf(x),
        torch.lgamma(x.abs() + 1),
        torch.special.xlogy(x, x.abs()),
        torch.logsumexp(x, 0),
    )


def _attributes(x: torch.Tensor) -> tuple[Any, ...]:
    half = x.new_zeros((*x.shape[1:], x.size(0) // 2)).to(x.dtype)
    return (
        x.T,
        x.mT,
        x.T.real,
        half,
        torch.full((x.ndim, x.numel()), x.element_size()),
        x.shape,
        x.dtype,
        x.is_floating_point(),
    )


def _lists_of_tensors(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    parts = torch._foreach_mul(list(x.split([1, 2, 1])), 2.0)
    torch._foreach_add_(parts, 1.0)
    rows, columns = torch.meshgrid(x[0], x[1], indexing="ij")
    return (
        torch.cat(parts),
        torch.stack(x.unbind(1)),
        rows * columns,
        torch.einsum("ij,kj->ik", x, x),
        torch.block_diag(x, x),
    )


def _attention(q: torch.Tensor) -> tuple[torch.Tensor, ...]:
    mask = torch.ones(6, 6, dtype=torch.bool).tril()
    attend = functional.scaled_dot_product_attention
    return (
        attend(q, q, q, is_causal=True),
        attend(q, q, q, attn_mask=mask, scale=0.5),
        attend(q, q[:, :1], q[:, :1], enable_gqa=True),
    )


def _scatter_and_gather(x: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, ...]:
    zeros = torch.zeros_like(x)
    return (
        x.gather(1, index),
        zeros.scatter(1, index, x),
        zeros.scatter_reduce(0, index, x, reduce="amax", include_self=False),
        zeros.index_put((index[0],), x, accumulate=True),
        torch.take_along_dim(x, index, dim=0),
        x.index_select(0, index[0]),
    )


def _orders(x: torch.Tensor) -> tuple[Any, ...]:
    return (
        x.sort(dim=0, descending=True),
        torch.topk(x, 2),
        x.cumsum(0),
        x.cummax(1),
        torch.median(x, dim=1),
        x.kthvalue(2),
        torch.searchsorted(x[0].sort().values, x),
    )


def _losses(x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (
        functional.nll_loss(functional.log_softmax(x, 1), labels, ignore_index=1),
        functional.binary_cross_entropy_with_logits(x, torch.sigmoid(x), pos_weight=torch.ones(4)),
        functional.huber_loss(x, x * 2, delta=0.5),
        functional.kl_div(x.log_softmax(1), x.softmax(1), reduction="batchmean"),
        functional.cosine_embedding_loss(x, x + 1, torch.ones(4)),
        functional.gaussian_nll_loss(x, x, torch.ones_like(x)),
    )


def _geometry(image: torch.Tensor) -> tuple[torch.Tensor, ...]:
    turn = torch.tensor([[[0.0, -1.0, 0.0], [1.0, 0.0, 0.1]]]).expand(2, 2, 3)
    grid = functional.affine_grid(turn, [2, 3, 8, 8], align_corners=False)
    return (
        functional.grid_sample(image, grid, padding_mode="border", align_corners=False),
        functional.interpolate(image, scale_factor=1.5, mode="bicubic", antialias=True),
        functional.pad(image, (1, 2, 0, 1), mode="reflect"),
        functional.fold(functional.unfold(image, 3, padding=1), (8, 8), 3, padding=1),
        torch.roll(image, (1, -1), dims=(2, 3)).flip(2),
    )


def _random(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    drawn = torch.rand(4), torch.randn_like(x), torch.randint(0, 9, (4,)), torch.bernoulli(torch.full((4,), 0.5))
    return *drawn, functional.dropout(x, 0.5), x + torch.normal(0.0, 1.0, (4, 4)), x.clone().uniform_(-1, 1)


def _assertions(x: torch.Tensor) -> torch.Tensor:
    torch._assert(x.shape[0] == 4, "four rows")
    torch._assert_async((x * x).sum() >= 0, "squares")
    return x + 1


def _numbers(x: torch.Tensor) -> torch.Tensor:
    return x * math.sqrt(x.shape[-1]) + math.pi / max(x.shape) - functools.reduce(operator.mul, x.shape, 1)


def _recurrent(build: Any) -> Program:
    return Program(name=build.__name__.lower(), build=lambda: _bidirectional(build), context=_recurrent_allowed)


# Dynamo leaves recurrent layers to eager otherwise.
_recurrent_allowed = functools.partial(torch._dynamo.config.patch, allow_rnn=True)


def _bidirectional(build: Any) -> Case:
    return Case(
        function=build(8, 16, num_layers=2, batch_first=True, bidirectional=True), calls=[call(torch.randn(2, 5, 8))]
    )


def _bags() -> Case:
    bags = nn.EmbeddingBag(16, 4, mode="mean")
    return Case(function=bags, calls=[call(torch.randint(0, 16, (7,)), torch.tensor([0, 3, 5]))])


def _einops() -> Case:
    einops = require_module("einops")

    def function(x: torch.Tensor) -> torch.Tensor:
        heads = einops.rearrange(x, "b (h d) -> b h d", h=2)
        result: torch.Tensor = einops.reduce(einops.repeat(heads, "b h d -> b h d r", r=2), "b h d r -> b r", "max")
        return result

    return Case(function=function, calls=[call(torch.randn(4, 8))])


def _float_and_integer() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(4, 4), torch.randint(0, 8, (4, 4))


PROGRAMS = (
    simple("operator_overloads", _overloads, _square),
    simple("operator_packets", _packets, _square),
    simple("custom_operator", _custom_operator, _square),
    simple("methods", _methods, _square),
    simple("python_operators", _python_operators, _float_and_integer),
    simple("in_place_operators", _in_place_operators, _float_and_integer),
    simple("spectra", _spectra, lambda: (torch.randn(4, 8),)),
    simple("linear_algebra", _linear_algebra, _square),
    simple("special_functions", _special_functions, _square),
    simple("attributes", _attributes, _square),
    simple("lists_of_tensors", _lists_of_tensors, _square),
    simple("scaled_dot_product_attention", _attention, lambda: (torch.randn(1, 2, 6, 8),)),
    simple("scatter_and_gather", _scatter_and_gather, lambda: (torch.randn(4, 4), torch.randint(0, 4, (4, 4)))),
    simple("orders", _orders, _square),
    simple("losses", _losses, lambda: (torch.randn(4, 4), torch.randint(0, 4, (4,)))),
    simple("geometry", _geometry, lambda: (torch.randn(2, 3, 8, 8),)),
    simple("random_numbers", _random, _square, random=True),
    simple("assertions", _assertions, _square),
    simple("numbers", _numbers, _square),
    _recurrent(nn.LSTM),
    _recurrent(nn.GRU),
    Program(name="embedding_bag", build=_bags),
    Program(name="einops", build=_einops),
)
