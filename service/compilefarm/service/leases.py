"""Leases of workers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from compilefarm.service.active_job import ActiveJob

# A moment that has passed on every event loop.
_PAST_SECONDS = 0.0


class Preempted(Exception):
    """The lease was revoked for a more urgent job."""


class Lease:
    """The lease of a worker by a job.

    Attributes:
        job: the job.
        worker: its name.
        since_seconds: when it was given, by the clock.
        is_revoked: whether it is being taken back.
    """

    def __init__(self, job: ActiveJob, *, worker: str, since_seconds: float) -> None:
        self.job = job
        self.worker = worker
        self.since_seconds = since_seconds
        self.is_revoked = False
        self._use: asyncio.Timeout | None = None

    def revoke(self) -> None:
        """Takes the worker back: what is done within `held` is cancelled."""
        self.is_revoked = True
        if self._use is not None:
            self._use.reschedule(_PAST_SECONDS)

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Lasts while the job uses the worker.

        Raises:
            Preempted: it was taken back.
        """
        # Nothing here depends on time: a scope of asyncio that can be ended from outside is called a timeout.
        scope = asyncio.timeout_at(_PAST_SECONDS if self.is_revoked else None)
        try:
            async with scope:
                self._use = scope
                yield
        except TimeoutError as error:
            if scope.expired():
                raise Preempted(f"worker {self.worker} was taken back for a more urgent job") from error
            raise
        finally:
            self._use = None
