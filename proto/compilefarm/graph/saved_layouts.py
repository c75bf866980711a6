"""How tensors that a forward pass keeps lie in memory, as its backward pass is compiled for them.

Where both are graphs of their own, results of the forward pass may lie otherwise than its trace says: of a `cat` with
nothing Inductor makes what stands beside it, whose memory has another order. Within one compile it tells the backward
pass (torch/_functorch/_aot_autograd/graph_compile.py: fwd_output_strides).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from compilefarm.graph.symbols import find_hint


def in_layouts_of(inputs: Sequence[Any], program: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a program whose tensors lie in memory as those do that it was compiled for; copies are made of others.

    Args:
        inputs: what it was compiled for: fake tensors, and others, which are passed as they are.
        program: a backward pass.
    """
    layouts = [(number, layout) for number, given in enumerate(inputs) if (layout := _find_layout(given)) is not None]
    if not layouts:
        return program

    def run(*given: Any) -> Any:
        laid_out = list(given)
        for number, layout in layouts:
            laid_out[number] = layout.of(given[number])
        return program(*laid_out)

    return run


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """Where the elements of a tensor lie.

    Attributes:
        order: dimensions from the outermost to the innermost.
        strides: if none differs from call to call; otherwise elements fill the memory.
    """

    order: Sequence[int]
    strides: tuple[int, ...] | None

    def of(self, given: torch.Tensor) -> torch.Tensor:
        """The tensor, or a copy of it that lies so."""
        strides = self.strides or _filling(given.shape, self.order)
        if given.stride() == strides or _are_alike(given.stride(), strides, given.shape):
            return given
        return given.new_empty_strided(given.shape, strides).copy_(given)


def _find_layout(given: Any) -> _Layout | None:
    """The layout of a tensor; None where there is none to choose, or where nothing is known of it."""
    if not isinstance(given, torch.Tensor) or not given.dim():
        return None
    sizes, strides = (
        [hint for each in numbers if (hint := find_hint(each)) is not None] for numbers in (given.shape, given.stride())
    )
    if len(sizes) + len(strides) < 2 * given.dim():
        return None
    # Of those with equal strides all but one have a single element, which lies anywhere.
    order = sorted(range(given.dim()), key=lambda dimension: (-strides[dimension], sizes[dimension]))
    if all(type(each) is int for each in (*given.shape, *given.stride())):
        return _Layout(order=order, strides=tuple(strides)) if _are_apart(sizes, strides, order) else None
    return _Layout(order=order, strides=None) if _are_alike(strides, _filling(sizes, order), sizes) else None


def _filling(sizes: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Strides of a tensor whose elements fill its memory, with its dimensions in that order."""
    strides, step = [0] * len(sizes), 1
    for dimension in reversed(order):
        strides[dimension] = step
        step *= max(sizes[dimension], 1)
    return tuple(strides)


def _are_alike(some: Sequence[int], others: Sequence[int], sizes: Sequence[int]) -> bool:
    """Whether strides say the same. Those of a single element say nothing, and none do where there is no element."""
    return 0 in sizes or all(one == other for one, other, size in zip(some, others, sizes, strict=True) if size != 1)


def _are_apart(sizes: Sequence[int], strides: Sequence[int], order: Sequence[int]) -> bool:
    """Whether each element has a place of its own."""
    reached = 0
    for dimension in reversed(order):
        if sizes[dimension] > 1 and strides[dimension] <= reached:
            return False
        reached += (sizes[dimension] - 1) * strides[dimension]
    return True
