"""Leases of workers, and how many each group of jobs has."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager

from compilefarm.service.active_job import ActiveJob
from compilefarm.service.fairness import Group, group_of

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
        group: for which it counts.
        is_revoked: whether it is being taken back.
    """

    def __init__(self, job: ActiveJob, *, worker: str, since_seconds: float) -> None:
        self.job = job
        self.worker = worker
        self.since_seconds = since_seconds
        self.group = group_of(job)
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


class Leases(Mapping[str, Lease]):
    """The leases of this moment, by the name of the worker.

    They are counted as they come and go: to count a thousand for each job takes longer than all else that is done to
    find a worker.

    Attributes:
        executing: how many each group has.
    """

    def __init__(self) -> None:
        self.executing: Counter[Group] = Counter()
        self._leases: dict[str, Lease] = {}
        self._of_jobs: dict[ActiveJob, Lease] = {}

    def __getitem__(self, worker: str) -> Lease:
        return self._leases[worker]

    def __iter__(self) -> Iterator[str]:
        return iter(self._leases)

    def __len__(self) -> int:
        return len(self._leases)

    @property
    def has_preemptible(self) -> bool:
        """Whether a worker could be taken back."""
        return any(is_preemptible for is_preemptible, _ in self.executing)

    def add(self, lease: Lease) -> None:
        """Adds one."""
        self._leases[lease.worker] = self._of_jobs[lease.job] = lease
        self.executing[lease.group] += 1

    def remove(self, lease: Lease) -> None:
        """Removes one."""
        del self._leases[lease.worker], self._of_jobs[lease.job]
        self._discount(lease)

    def renew(self, job: ActiveJob) -> None:
        """Counts the lease of a job whose priority has changed, if it has one, for the group that it is of now."""
        lease = self._of_jobs.get(job)
        if lease is not None:
            self._discount(lease)
            lease.group = group_of(job)
            self.executing[lease.group] += 1

    def _discount(self, lease: Lease) -> None:
        self.executing[lease.group] -= 1
        if not self.executing[lease.group]:
            del self.executing[lease.group]
