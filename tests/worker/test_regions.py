"""Regions that are compiled once, within each other and within other graphs: all that a worker does with them."""

from __future__ import annotations

import torch

from tests.worker.single_process import compiled
from tests.worker.verifying import checked, encoded_of

_region = torch.compiler.nested_compile_region


@_region
def _inner(x: torch.Tensor) -> torch.Tensor:
    return x.sin() + 1


@_region
def _outer(x: torch.Tensor) -> torch.Tensor:
    return _inner(x) * 2 + _inner(x.cos())


def _program(x: torch.Tensor) -> torch.Tensor:
    return _outer(_outer(x))


def test_a_region_within_a_region_has_gradients_that_are_verified() -> None:
    """Torch does not read again what it saves of a backward with a graph within a graph."""
    encoded = encoded_of(_program, torch.linspace(-1, 1, 12).view(3, 4).requires_grad_(), trains=True)
    program, _ = compiled(encoded)
    figures = checked(encoded, lambda _: program)
    # What it gives, what it leaves of its input, and the gradient.
    assert (figures.compared, figures.not_compared) == (2, "")
