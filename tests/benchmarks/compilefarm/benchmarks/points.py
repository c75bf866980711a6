"""What the growth of something costs: one point for each size of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

# The sizes of each axis.
AXES: dict[str, tuple[int, ...]] = {
    "layers": (2, 4, 8, 16, 32, 64),
    "clients": (1, 10, 100, 1000),
    "slots": (1, 2),
    "workers": (1, 2, 4),
    "lookups": (1, 8, 64),
    "entries": (10, 100, 1000, 10_000, 100_000),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The figures at one size.

    Attributes:
        axis: what grows, of AXES.
        size: how many there are.
        figures: by name, in the order in which they are shown. Names end in their unit; without one they are ratios.
        reason: why there are none; empty if there are.
    """

    axis: str
    size: int
    figures: dict[str, float]
    reason: str = ""


OnPoint = Callable[[Point], None]


class Grow(Protocol):
    """Measures an axis."""

    def __call__(self, sizes: Sequence[int], *, folder: Path, on_point: OnPoint) -> None:
        """Measures its sizes, from the smallest on.

        Args:
            sizes: of them.
            folder: for stores, caches and logs.
            on_point: told each point as it is known.
        """
