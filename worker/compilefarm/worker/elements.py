"""Elements of synthetic inputs of which something is known."""

from __future__ import annotations

import math

import torch

from compilefarm.worker.fillers import Filler, Kind

_LARGEST_DIVISOR = 5
# That is shared out: times as many elements as any tensor has it is no more than an integer holds.
_MOST_SHARED = 2**31
# Of probabilities: this far from zero and one.
_MARGIN = 0.05
# Elements of a region, and how far its image's number is from the next smaller one.
_REGION = 5
_WITHIN = 0.25


def elements_of(tensor: torch.Tensor, filler: Filler, *, uniform: torch.Tensor, signed: torch.Tensor) -> torch.Tensor:
    """Elements for a tensor, in one dimension: as many as it has, or as many as were drawn, to be repeated.

    Args:
        tensor: what they are for.
        filler: what they have to be.
        uniform: numbers between 0.5 and 1.5.
        signed: the same with either sign.
    """
    shares = uniform - 0.5
    match filler.kind:
        case Kind.INDEX:
            made = (shares * filler.bound).floor().clamp(0, max(filler.bound - 1, 0))
        case Kind.PLACES:
            made = _places(tensor.shape, filler.bound)
        case Kind.OFFSETS:
            made = torch.arange(tensor.numel()) * filler.bound // max(tensor.numel(), 1)
        case Kind.SPLITS:
            made = _splits(tensor, filler.bound)
        case Kind.COUNT:
            made = torch.full_like(uniform, filler.bound)
        case Kind.SHARES:
            bound = min(filler.bound, _MOST_SHARED)
            made = (torch.arange(tensor.numel() + 1) * bound // max(tensor.numel(), 1)).diff()
        case Kind.CHOICES:
            made = (torch.arange(tensor.numel() + 1) * filler.bound // filler.places).diff() > 0
        case Kind.COUNTING:
            made = torch.arange(tensor.shape[-1] if tensor.dim() else 1).expand(tensor.shape).flatten()
        case Kind.PIVOTS:
            made = torch.arange(1, 1 + (tensor.shape[-1] if tensor.dim() else 1)).expand(tensor.shape).flatten()
        case Kind.DEFINITE:
            return _definite(tensor, signed)
        case Kind.REGIONS:
            made = _regions(tensor, shares, filler)
        case Kind.ORDERED:
            made = _steps(tensor)
        case Kind.DIVISOR:
            made = signed if tensor.is_floating_point() else (shares * _LARGEST_DIVISOR).floor() + 1
        case Kind.POSITIVE:
            made = uniform if tensor.is_floating_point() else (shares * _LARGEST_DIVISOR).floor() + 1
        case Kind.WEIGHTS:
            made = signed / math.sqrt(filler.bound)
        case Kind.PROBABILITY:
            made = shares * (1 - 2 * _MARGIN) + _MARGIN
    return made.to(tensor.dtype)


def mask_of(tensor: torch.Tensor, *, uniform: torch.Tensor) -> torch.Tensor:
    """Booleans for a tensor, in one dimension: three of four are true.

    Of each row the first is true and the second is not: masks say either what is attended to or what is not, and both
    have to leave something.
    """
    positions = torch.arange(len(uniform)) % (tensor.shape[-1] if tensor.dim() else 1)
    return ((uniform < 1.25) | (positions == 0)) & (positions != 1)


def _places(shape: torch.Size, bound: int) -> torch.Tensor:
    """Integers below a bound: all different in as many of the last dimensions as it allows, and along each other."""
    if not shape.numel() or not bound:
        return torch.zeros(shape.numel())
    steps, counted = [], 1
    for size in reversed(shape):
        steps.append(counted if counted * size <= bound else 1)
        counted *= size
    grids = torch.meshgrid(*(torch.arange(size) for size in shape), indexing="ij")
    numbers = sum((grid * step for grid, step in zip(grids, reversed(steps), strict=True)), torch.zeros(()).long())
    return (numbers.flatten() * _coprime(bound) + bound // 3) % bound


def _definite(tensor: torch.Tensor, signed: torch.Tensor) -> torch.Tensor:
    """Matrices whose diagonals outweigh all else in a row, one after the other."""
    size = tensor.shape[-1] if tensor.dim() > 1 else 0
    if not size or tensor.shape[-2] != size:
        return signed.to(tensor.dtype)
    whole = len(signed) // size**2 * size**2
    drawn = (signed[:whole] if whole else signed.repeat(size**2 // len(signed) + 1)[: size**2]).view(-1, size, size)
    symmetric = (drawn + drawn.mT) / (2 * size) + 3 * torch.eye(size)
    antisymmetric = (drawn - drawn.mT) / (2 * size)
    made = torch.complex(symmetric, antisymmetric) if tensor.is_complex() else symmetric
    return made.flatten().to(tensor.dtype)


def _regions(tensor: torch.Tensor, shares: torch.Tensor, filler: Filler) -> torch.Tensor:
    """Rows of the number of an image, and of the smaller and the larger corner of a box."""
    if not tensor.dim() or tensor.shape[-1] != _REGION:
        return shares
    rows = shares[: len(shares) // _REGION * _REGION].view(-1, _REGION)
    # A last bit less, and it is the same image still: the operators round it down.
    images = (rows[:, :1] * filler.bound).floor() + _WITHIN
    one, other = rows[:, 1:3] * filler.extent, rows[:, 3:] * filler.extent
    return torch.cat([images, torch.minimum(one, other), torch.maximum(one, other)], dim=1).flatten()


def _coprime(bound: int) -> int:
    """A step that comes to every number below a bound before it comes to one again."""
    return next(step for step in range(int(bound * 0.6) + 1, 2 * bound + 2) if math.gcd(step, bound) == 1)


def _splits(tensor: torch.Tensor, bound: int) -> torch.Tensor:
    size = tensor.shape[-1] if tensor.dim() else 1
    steps = torch.arange(size) * bound // max(size - 1, 1)
    return steps.expand(tensor.shape).flatten()


def _steps(tensor: torch.Tensor) -> torch.Tensor:
    size = tensor.shape[-1] if tensor.dim() else 1
    steps = torch.arange(size) if not tensor.is_floating_point() else (torch.arange(size) + 0.5) / size
    return steps.expand(tensor.shape).flatten()
