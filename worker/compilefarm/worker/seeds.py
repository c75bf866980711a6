"""Results that depend on random numbers.

Inductor draws other random numbers than eager from one seed, unless the option `fallback_random` has it draw as eager
does. What differs from seed to seed is therefore held to what the artifact gave under that seed before, and in kind to
eager; all else of such a graph is compared with eager as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass

import torch

from compilefarm.worker.comparison import Comparison, VerificationFailed, differing_names
from compilefarm.worker.results import Results

SEED = 1
_OTHER_SEED = 2

# Runs a program on inputs like those of every other run, with torch's generators at a seed.
Run = Callable[[int], Results]


@dataclass(frozen=True, slots=True, kw_only=True)
class Randomness:
    """The results of eager that an artifact need not reproduce.

    Attributes:
        seeded: names of results that differ from seed to seed.
        unsteady: names of those that differ from run to run under one seed, such as memory that nobody wrote to.
        drawn: names of those that depend on random numbers, whether the artifact draws the same ones or not: in another
            precision, others are drawn.
        other: eager's results under another seed, of these.
    """

    seeded: Set[str]
    unsteady: Set[str]
    drawn: Set[str]
    other: Results

    @property
    def names(self) -> Set[str]:
        """Names of all of these results."""
        return self.seeded | self.unsteady

    def with_unsteady(self, names: Set[str], theirs: Results) -> Randomness:
        """Returns a copy with more unsteady names; `theirs` are results of eager."""
        other = {**self.other, **{name: theirs[name] for name in names - self.other.keys()}}
        return Randomness(
            seeded=self.seeded - names, unsteady=self.unsteady | names, drawn=self.drawn | names, other=other
        )


def find_randomness(theirs: Results, eager: Run, *, draws_alike: bool, near: Comparison) -> Randomness:
    """Tells results apart by running eager once more, and again if that made a difference.

    Args:
        theirs: results of eager under SEED.
        eager: runs it.
        draws_alike: whether the artifact draws the random numbers that eager does.
        near: tells what differs by last bits alone, such as sums of which the order is not set.
    """
    other = eager(_OTHER_SEED)
    varying = differing_names(theirs, other)
    if not varying:
        return Randomness(seeded=frozenset(), unsteady=frozenset(), drawn=frozenset(), other={})
    other = {name: other[name] for name in varying}
    again = eager(SEED)
    restless = differing_names({name: theirs[name] for name in varying}, again)
    unsteady = {name for name in restless if not near.agrees(again, theirs, name=name)}
    # Memory that nobody wrote to may happen to hold the same twice.
    by_chance = restless | near.unwritten.keys()
    seeded = {name for name in varying - unsteady if name not in by_chance or not near.agrees(other, theirs, name=name)}
    return Randomness(
        seeded=frozenset() if draws_alike else seeded, unsteady=unsteady, drawn=seeded | unsteady, other=other
    )


def check_random(ours: Results, again: Results, theirs: Results, randomness: Randomness, *, near: Comparison) -> None:
    """Checks random results: kind, finiteness, and that equal seeds give equal results.

    Args:
        ours: results of the artifact.
        again: the same under the same seed.
        theirs: results of eager.
        randomness: what `find_randomness` said of these.
        near: compares two runs of the artifact.

    Raises:
        VerificationFailed: they are of another kind than eager's, not finite, or others under one seed.
    """
    for name in sorted(randomness.names):
        _check_kind(name, ours[name], theirs[name], randomness.other[name])
    for name in sorted(randomness.seeded):
        if not near.agrees(again, ours, name=name):
            raise VerificationFailed(f"{name} is random, and differs from call to call under one seed")


def _check_kind(name: str, ours: object, theirs: torch.Tensor, other: torch.Tensor) -> None:
    if not isinstance(ours, torch.Tensor) or ours.dtype != theirs.dtype or ours.dim() != theirs.dim():
        raise VerificationFailed(f"{name} is of another kind than eager's")
    # A graph that picks at random may give another number of elements each time.
    if theirs.shape == other.shape != ours.shape:
        raise VerificationFailed(f"{name} is {list(ours.shape)} instead of {list(theirs.shape)}")
    if theirs.isfinite().all() and other.isfinite().all() and not ours.isfinite().all():
        raise VerificationFailed(f"{name} is not finite where eager is")
