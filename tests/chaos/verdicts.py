"""What a claim came to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .ray_cluster import RayCluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is done.

    Attributes:
        short: as little as shows that a claim can be tested: nothing is judged by time then.
        folder: for stores, logs and the like; it is empty.
        cluster: has the workers; None: they are processes of the gateways.
    """

    short: bool
    folder: Path
    cluster: RayCluster | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a claim came to.

    Attributes:
        done: what was tried, with counts.
        seen: what came of it, with counts.
        problems: why the claim does not hold; empty if it holds.
    """

    done: str
    seen: str
    problems: Sequence[str] = ()


Claim = Callable[[Scale], Verdict]


def problems_of(**expectations: bool) -> list[str]:
    """The names of what is not so, as words."""
    return [name.replace("_", " ") for name, holds in expectations.items() if not holds]
