"""Errors of rounding: how far results are from a reference, and how far they may be."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from compilefarm.graph.tolerances import epsilon_of

# An artifact may be so many times as far from the reference as eager is (torch/_dynamo/utils.py: same, takes 2 to 3).
# Functions of float32 are off by up to 20 last bits in vectors (ATen/cpu/vec: exp_u20), where eager's are by one.
_TIMES_EAGER = {torch.float32: 16.0, torch.float64: 16.0}
_TIMES_EAGER_OF_NARROW = 3.0
# A single number of eager may be right by luck; so many of the smallest steps are then allowed.
_STEPS_BY_LUCK = 2.0
# Nothing is nearer than so many of the smallest steps of one: gradients that should be zero are what rounding left.
_LEAST_STEPS = {torch.float32: 1.0, torch.float64: 1.0}
_LEAST_STEPS_OF_NARROW = 1 / 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """The distance of elements from those of a reference.

    Attributes:
        largest: the largest difference.
        typical: the root of the mean of their squares.
    """

    largest: float
    typical: float

    @classmethod
    def between(cls, ours: torch.Tensor, reference: torch.Tensor) -> Distance:
        """Returns the distance between two tensors of one shape, with at least one element, all of them finite."""
        return cls.of(ours.double() - reference.double())

    @classmethod
    def of(cls, elements: torch.Tensor) -> Distance:
        """Returns the distance from zero."""
        exact = elements.double()
        return cls(largest=exact.abs().max().item(), typical=exact.norm().item() / math.sqrt(exact.numel()))

    def is_within(self, other: Distance) -> bool:
        """Returns whether neither distance is larger than the other's."""
        return self.largest <= other.largest and self.typical <= other.typical

    def or_larger(self, other: Distance) -> Distance:
        """The larger ones of both."""
        return Distance(largest=max(self.largest, other.largest), typical=max(self.typical, other.typical))


def allowed_distance(
    theirs: Distance,
    magnitude: Distance,
    *,
    elements: int,
    dtype: torch.dtype,
    inside: torch.dtype,
    times: float | None = None,
) -> Distance:
    """Returns how far an artifact may be from the reference: a few times as far as eager, at least a rounding.

    Args:
        theirs: how far eager is.
        magnitude: of the reference.
        elements: how many there are: the fewer, the more of eager's distance is luck.
        dtype: of the result.
        inside: the coarsest dtype on the way to it.
        times: how many times as far as eager it may be; None for what `inside` says.
    """
    coarse = epsilon_of(inside)
    share = epsilon_of(dtype) + _STEPS_BY_LUCK * coarse / math.sqrt(elements)
    least = _LEAST_STEPS.get(inside, _LEAST_STEPS_OF_NARROW) * torch.finfo(inside).eps
    times = _TIMES_EAGER.get(inside, _TIMES_EAGER_OF_NARROW) if times is None else times
    return Distance(
        largest=times * theirs.largest + 2 * share * magnitude.largest + least,
        typical=times * theirs.typical + share * magnitude.typical + least,
    )
