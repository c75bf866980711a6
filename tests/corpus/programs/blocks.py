"""Parts of models and of what stands around them, as people write them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from tests.corpus.program import Case, Program, backpropagating, call, plainly, simple


def _rotary(q: torch.Tensor) -> torch.Tensor:
    """Turns queries (batch, length, heads, size) by their positions, as complex numbers."""
    size = q.shape[-1]
    frequencies = 10_000.0 ** (-torch.arange(0, size, 2).float() / size)
    turns = torch.polar(torch.ones(1), torch.outer(torch.arange(q.shape[1]).float(), frequencies))
    turned = torch.view_as_complex(q.float().reshape(*q.shape[:-1], -1, 2)) * turns[None, :, None]
    return torch.view_as_real(turned).flatten(3).type_as(q)


class _Adapted(nn.Module):
    """A frozen layer with a low-rank adapter."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.down = nn.Linear(8, 2, bias=False)
        self.up = nn.Linear(2, 8, bias=False)
        self.scale = 0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.frozen(x) + self.up(self.down(x)) * self.scale
        return result


class _Parametrized(nn.Module):
    """Weights that are computed from others."""

    def __init__(self) -> None:
        super().__init__()
        self.normed = parametrizations.weight_norm(nn.Conv1d(4, 4, 3))
        self.spectral = parametrizations.spectral_norm(nn.Linear(6, 6))
        self.orthogonal = parametrizations.orthogonal(nn.Linear(6, 6, bias=False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.orthogonal(self.spectral(self.normed(x)))
        return result


class _QuantizedLinear(nn.Module):
    """Weights in eight bits, with a scale for each row."""

    def __init__(self) -> None:
        super().__init__()
        weight = torch.randn(8, 16)
        scale = weight.abs().amax(1, keepdim=True) / 127
        self.register_buffer("weight", torch.round(weight / scale).to(torch.int8))
        self.register_buffer("scale", scale.to(torch.bfloat16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.weight.to(x.dtype) * self.scale)


class _Denoiser(nn.Module):
    """A step of diffusion: the time is an input like the image."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, 8), nn.SiLU(), nn.Linear(8, 16))
        self.into = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.GroupNorm(2, 8)
        self.out = nn.Conv2d(8, 3, 3, padding=1)

    def forward(self, image: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        frequencies = torch.exp(-math.log(10_000) * torch.arange(8, device=step.device) / 8)
        angles = step[:, None].float() * frequencies
        shift, scale = self.time(torch.cat([angles.sin(), angles.cos()], dim=-1)).chunk(2, dim=1)
        hidden = self.norm(self.into(image)) * (1 + scale[..., None, None]) + shift[..., None, None]
        noise: torch.Tensor = self.out(functional.silu(hidden))
        return image - noise * torch.rsqrt(step.float() + 1)[:, None, None, None]


class _Autoencoder(nn.Module):
    """A variational one, with its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(8, 8)
        self.decode = nn.Linear(4, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean, log_variance = self.encode(x).chunk(2, dim=-1)
        latent = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
        divergence = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(-1)
        return (functional.mse_loss(self.decode(latent), x, reduction="none").sum(-1) + divergence).mean()


class _GraphConvolution(nn.Module):
    """Sums over the neighbours in a graph of edges (2, count)."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, nodes: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        source, target = edges
        messages = self.linear(nodes)[source]
        summed = torch.zeros_like(nodes).index_add_(0, target, messages)
        degree = torch.bincount(target, minlength=nodes.shape[0]).clamp(min=1)
        return torch.relu(summed / degree[:, None])


class _RecurrentCells(nn.Module):
    """A loop over time in Python."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(4, 8)
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state = (x.new_zeros(x.shape[0], 8), x.new_zeros(x.shape[0], 8))
        seen = []
        for part in x.unbind(1):
            state = self.cell(part, state)
            seen.append(state[0])
        history = torch.stack(seen, dim=1)
        ahead = torch.triu(torch.ones(history.shape[1], history.shape[1], dtype=torch.bool), diagonal=1)
        result: tuple[torch.Tensor, torch.Tensor] = self.attend(history, history, history, attn_mask=ahead)
        return result


def _overlap_of_boxes(boxes: torch.Tensor, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    order = scores.argsort(descending=True)
    low, high = boxes[order].chunk(2, dim=1)
    size = (torch.min(high[:, None], high) - torch.max(low[:, None], low)).clamp(min=0)
    area = (high - low).prod(1)
    overlap = size.prod(-1) / (area[:, None] + area - size.prod(-1))
    kept = (overlap.triu(1) < 0.5).all(0)
    return order, kept


def _mel_spectrogram(wave: torch.Tensor) -> torch.Tensor:
    spectrum = torch.stft(wave, 32, hop_length=16, window=torch.hann_window(32), return_complex=True)
    filters = functional.relu(1 - (torch.linspace(0, 8, 17)[:, None] - torch.arange(8)).abs())
    return torch.log10((spectrum.abs() ** 2).transpose(-1, -2) @ filters + 1e-10)


def _solve_an_equation(state: torch.Tensor) -> torch.Tensor:
    def slope(state: torch.Tensor, time: float) -> torch.Tensor:
        return torch.stack([state[1], -math.cos(time) * state[0]])

    for step in range(3):
        time = 0.1 * step
        first = slope(state, time)
        second = slope(state + 0.05 * first, time + 0.05)
        state = state + 0.1 * second
    return state


def _distributions(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    normal = torch.distributions.Normal(x, torch.ones_like(x), validate_args=False)
    categorical = torch.distributions.Categorical(logits=x, validate_args=False)
    prior = torch.distributions.Normal(torch.zeros_like(x), torch.ones_like(x), validate_args=False)
    kept = torch.distributions.kl_divergence(normal, prior)
    return normal.log_prob(x * 2), categorical.entropy(), kept


def _sample_tokens(logits: torch.Tensor) -> torch.Tensor:
    top, indices = torch.topk(logits / 0.7, 8)
    shares = top.softmax(-1)
    shares = shares.masked_fill(shares.cumsum(-1) - shares > 0.9, 0.0)
    return indices.gather(-1, torch.multinomial(shares, 1))


def _running_average(averaged: list[torch.Tensor], latest: list[torch.Tensor]) -> None:
    torch._foreach_lerp_(averaged, latest, 0.01)


def _two_lists() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    return [torch.randn(3), torch.randn(2, 2)], [torch.randn(3), torch.randn(2, 2)]


def _norms(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    mean_square = x.float().pow(2).mean(-1, keepdim=True)
    by_hand = (x.float() * torch.rsqrt(mean_square + 1e-6)).type_as(x)
    return (
        by_hand,
        functional.rms_norm(x, (8,)),
        functional.local_response_norm(x[None], 2),
        functional.normalize(x, p=1),
    )


def _gated(x: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
    gate, up, down = weights
    return (functional.silu(x @ gate) * (x @ up)) @ down


def _module(
    name: str,
    build: Callable[[], nn.Module],
    arguments: Callable[[], tuple[Any, ...]],
    *,
    training: bool = False,
    **flags: Any,
) -> Program:
    use = backpropagating if training else plainly
    return Program(
        name=name,
        build=lambda: Case(function=build().train(training), calls=[call(*arguments())], use=use),
        training=training,
        **flags,
    )


_rows = partial(torch.randn, 4, 8)

PROGRAMS = (
    simple("rotary_embedding", _rotary, lambda: (torch.randn(1, 6, 2, 8),)),
    simple(
        "gated_feed_forward", _gated, lambda: (_rows(), [torch.randn(8, 16), torch.randn(8, 16), torch.randn(16, 8)])
    ),
    simple("norms", _norms, lambda: (_rows(),)),
    _module("low_rank_adapter", _Adapted, lambda: (_rows(),), training=True),
    _module("parametrized_weights", _Parametrized, lambda: (torch.randn(2, 4, 8),)),
    _module("parametrized_weights_training", _Parametrized, lambda: (torch.randn(2, 4, 8),), training=True),
    _module("quantized_weights", _QuantizedLinear, lambda: (torch.randn(4, 16).to(torch.bfloat16),)),
    _module("diffusion_step", _Denoiser, lambda: (torch.randn(2, 3, 8, 8), torch.tensor([3, 40]))),
    _module("variational_autoencoder", _Autoencoder, lambda: (_rows(),), training=True, random=True),
    _module("graph_convolution", _GraphConvolution, lambda: (torch.randn(5, 4), torch.randint(0, 5, (2, 9)))),
    _module("recurrent_cells", _RecurrentCells, lambda: (torch.randn(2, 4, 4),), training=True),
    simple(
        "overlap_of_boxes",
        _overlap_of_boxes,
        lambda: (torch.rand(6, 4) + torch.tensor([0.0, 0.0, 1.0, 1.0]), torch.rand(6)),
    ),
    simple("mel_spectrogram", _mel_spectrogram, lambda: (torch.randn(2, 128),)),
    simple("differential_equation", _solve_an_equation, lambda: (torch.randn(2, 3),)),
    simple("distributions", _distributions, lambda: (_rows(),)),
    simple("sampled_tokens", _sample_tokens, lambda: (torch.randn(2, 32),), random=True),
    simple("running_average", _running_average, _two_lists),
)
