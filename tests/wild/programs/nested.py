"""Jagged tensors: batches of rows that differ in length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.corpus.program import Case, call
from tests.wild.program import Program, backpropagating, program_of_case

_WIDTH = 16
_LENGTHS = ((3, 5, 2), (1, 7, 4), (2, 2, 6))


def _jagged(*lengths: int) -> torch.Tensor:
    rows = [torch.randn(length, _WIDTH) for length in lengths]
    return torch.nested.nested_tensor(rows, layout=torch.jagged)


class _Values(nn.Module):
    """The elements of what a model returns, which can be compared."""

    def __init__(self, model: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x).values()


class _Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer = nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, _WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.nn.functional.gelu(self.layer(self.norm(x)))


class _Made(nn.Module):
    """Makes a jagged tensor of rows and offsets."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(_WIDTH, _WIDTH)

    def forward(self, rows: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return self.layer(torch.nested.nested_tensor_from_jagged(rows, offsets)).relu().values()


def _model(name: str, make: Callable[[], nn.Module], *, training: bool = False) -> Program:
    def build() -> Case:
        calls = [call(_jagged(*lengths)) for lengths in _LENGTHS]
        given: dict[str, Any] = {"use": backpropagating} if training else {}
        return Case(function=_Values(make()), calls=calls, **given)

    return program_of_case(name, build, training=training)


def _made() -> Case:
    return Case(function=_Made(), calls=[call(torch.randn(10, _WIDTH), torch.tensor([0, 3, 8, 10]))])


def _mean_of_each(rows: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """The offsets are computed of lengths, as recommenders have them."""
    offsets = nn.functional.pad(lengths.cumsum(0), (1, 0))
    return torch.nested.nested_tensor_from_jagged(rows, offsets).sin().mean(dim=1)


def _measured() -> Case:
    calls = [call(torch.randn(sum(lengths), _WIDTH), torch.tensor(lengths)) for lengths in _LENGTHS]
    return Case(function=_mean_of_each, calls=calls)


def _along(name: str, along: Callable[[torch.Tensor], torch.Tensor], *, training: bool = False) -> Program:
    """A program that computes along the dimension whose length differs."""

    def build() -> Case:
        model = nn.Linear(_WIDTH, 4)
        given: dict[str, Any] = {"use": backpropagating} if training else {}
        return Case(function=lambda x: along(model(x)), calls=[call(_jagged(*each)) for each in _LENGTHS], **given)

    return program_of_case(name, build, training=training)


def _padded(x: torch.Tensor) -> torch.Tensor:
    return torch.nested.to_padded_tensor(x, 0.5, output_size=(3, 8, 4))


PROGRAMS = (
    _model("layers", lambda: nn.Sequential(nn.Linear(_WIDTH, 32), nn.GELU(), nn.Linear(32, _WIDTH))),
    _model("residual block", _Residual),
    _model(
        "layers, training", lambda: nn.Sequential(nn.Linear(_WIDTH, 32), nn.SiLU(), nn.Linear(32, 8)), training=True
    ),
    _model("residual block, training", _Residual, training=True),
    program_of_case("made of rows and offsets", _made),
    program_of_case("made of rows and lengths", _measured),
    _along("mean of each", lambda x: x.mean(dim=1)),
    _along("softmax of each", lambda x: x.softmax(dim=1).values()),
    _along("padded", _padded),
    _along("padded, training", _padded, training=True),
)
