"""What became of a push to a Mega-Cache bundle, or of a pull, and why parts were left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from compilefarm.core.errors import (
    Busy,
    CorruptArtifact,
    FarmError,
    InvalidRequest,
    NotStored,
    StoreFull,
    UntrustedArtifact,
)
from compilefarm.core.printable import printable

# Errors of one entry; any other would meet the next one, too.
_OF_ONE_ENTRY = (Busy, CorruptArtifact, InvalidRequest, NotStored, StoreFull, UntrustedArtifact)


class Obstacles:
    """Why parts of a bundle were left out: each reason once, with how many it kept out. Threads share it."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def note(self, reason: str, *, parts: int = 1) -> None:
        """Notes why so many parts were left out."""
        self._counts[printable(" ".join(reason.split()))] += parts

    @contextmanager
    def noting(self, what: str) -> Iterator[None]:
        """Goes on after an error that concerns one entry, and notes it.

        Args:
            what: was read or written.
        """
        try:
            yield
        except _OF_ONE_ENTRY as error:
            self.note(f"{what} [{error.reason}]: {error}")

    def texts(self) -> tuple[str, ...]:
        """The reasons, each with its number of parts if there are several."""
        return tuple(f"{count} times: {reason}" if count > 1 else reason for reason, count in self._counts.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """What became of a push.

    Attributes:
        name: of the bundle.
        added: number of parts that the bundle has now and had not before, by kind.
        known: number of parts that it had.
        sent_bytes: contents that the farm had in no bundle, and has now.
        obstacles: why others were not pushed.
        is_cut_off: whether the farm ended after some were sent; the bundle is what it was, and another push sends the
            others.
    """

    name: str
    added: Mapping[str, int]
    known: int
    sent_bytes: int
    obstacles: Sequence[str] = ()
    is_cut_off: bool = False

    def __str__(self) -> str:
        added = f"{_words(self.added)} added, {self.known} parts already there, {self.sent_bytes} bytes sent"
        return f"bundle {self.name}: {added}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulled:
    """What became of a pull.

    Attributes:
        name: of the bundle.
        loaded: number of parts that are in the local caches now, by kind.
        received_bytes: their contents.
        obstacles: why others were not loaded.
        is_cut_off: whether the farm ended before it was asked for all parts; another pull may load the others.
    """

    name: str
    loaded: Mapping[str, int]
    received_bytes: int
    obstacles: Sequence[str] = ()
    is_cut_off: bool = False

    def __str__(self) -> str:
        return f"bundle {self.name}: {_words(self.loaded)} loaded, {self.received_bytes} bytes received"


def nothing_pushed(name: str, error: FarmError) -> Pushed:
    """A push that the farm could not be asked for."""
    return Pushed(name=name, added={}, known=0, sent_bytes=0, obstacles=(_of(error),))


def nothing_pulled(name: str, error: FarmError) -> Pulled:
    """A pull that the farm could not be asked for."""
    return Pulled(name=name, loaded={}, received_bytes=0, obstacles=(_of(error),), is_cut_off=True)


def _of(error: FarmError) -> str:
    return f"[{error.reason}] {printable(' '.join(str(error).split()))}"


def _words(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())) or "nothing"
