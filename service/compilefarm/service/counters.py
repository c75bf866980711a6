"""What the gateway counts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from compilefarm.core.errors import Busy, Draining, InvalidRequest, MissingBlobs, NoMatchingWorker

_REFUSALS = (InvalidRequest, NoMatchingWorker, MissingBlobs, Busy, Draining)


@dataclass(slots=True, kw_only=True)
class Counters:
    """Counts since the service started; the words are those of compilefarm.v1.Counters."""

    hits: int = 0
    misses: int = 0
    joins: int = 0
    compiled: int = 0
    failed: int = 0
    refused: int = 0
    quarantined: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    withdrawn: int = 0
    failed_checks: int = 0
    unexpected_sources: int = 0

    @contextmanager
    def counting_refusals(self) -> Iterator[None]:
        """Counts a refusal that is raised inside."""
        try:
            yield
        except _REFUSALS:
            self.refused += 1
            raise
