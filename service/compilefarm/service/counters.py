"""What the gateway counts."""

from __future__ import annotations

from dataclasses import dataclass


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
