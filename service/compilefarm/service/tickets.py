"""A job's place in the queue, and the worker that it is lent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from compilefarm.service.demand import Demand
from compilefarm.service.durations import Kind
from compilefarm.service.matching import Wanted

# A moment that has passed on every event loop.
_PAST_SECONDS = 0.0


class Preempted(Exception):
    """The worker was taken back for a job that is more urgent."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ticket:
    """A job's place in the queue; it keeps it when the job lost its worker and has to wait again.

    Attributes:
        key: key of the job.
        number: tickets are numbered as they are handed out.
        wanted: the environment that the job needs.
        demand: who wants it.
        kind: what it is like; tells how long it may take.
        losses: names of the workers that were lost on this job, one for each attempt; others are preferred.
    """

    key: str
    number: int
    wanted: Wanted
    demand: Demand
    kind: Kind
    losses: list[str] = field(default_factory=list)


class Loan:
    """A worker that a job has.

    Attributes:
        ticket: of the job.
        worker: its name.
        since_seconds: when it was lent, by the clock.
        is_revoked: whether it is being taken back.
    """

    def __init__(self, ticket: Ticket, *, worker: str, since_seconds: float) -> None:
        self.ticket = ticket
        self.worker = worker
        self.since_seconds = since_seconds
        self.is_revoked = False
        self._use: asyncio.Timeout | None = None

    def revoke(self) -> None:
        """Takes the worker back: what is done within `used` is cancelled."""
        self.is_revoked = True
        if self._use is not None:
            self._use.reschedule(_PAST_SECONDS)

    @asynccontextmanager
    async def used(self) -> AsyncIterator[None]:
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
