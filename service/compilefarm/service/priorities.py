"""Priorities of jobs."""

from __future__ import annotations

from enum import IntEnum


class Priority(IntEnum):
    """The priority of a job. Less is more urgent, and 100 more halve a job's claim to a worker: see `fairness`."""

    INTERACTIVE = 0
    BACKGROUND = 300
    PREWARM = 600

    @property
    def is_preemptible(self) -> bool:
        """Whether such a job makes room for an interactive one, and is done although nobody waits for it."""
        return self is Priority.PREWARM
