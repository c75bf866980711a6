"""How many variants a key may have."""

from __future__ import annotations

from dataclasses import dataclass

# Of a key, in a namespace: to look through them takes some milliseconds. Programs have some ten.
MOST_VARIANTS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Variants:
    """The variants of a key in a namespace.

    Attributes:
        count: how many there are.
        has_room: whether there may be another: there are fewer than MOST_VARIANTS, or one that goes for it.
    """

    count: int
    has_room: bool
