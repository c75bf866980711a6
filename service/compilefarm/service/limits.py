"""Limits of waiting jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from compilefarm.core.errors import Busy
from compilefarm.service.active_job import ActiveJob
from compilefarm.service.lines import Line

_LEAST_RETRY_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """What a job that may not wait can expect.

    Attributes:
        room_seconds: until the first of the jobs before it starts.
        wait_seconds: until it would start itself.
    """

    room_seconds: float
    wait_seconds: float


# Tells what a job can expect behind some lines.
Foresee = Callable[[Sequence[Line], ActiveJob], Delay]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits how many jobs may wait. Only jobs that are as urgent or more so are held against a job: a full prewarm
    turns no interactive job away.

    Attributes:
        queued_jobs: of all.
        tenant_jobs: of one tenant.
    """

    queued_jobs: int
    tenant_jobs: int

    def require_room(self, job: ActiveJob, *, waiting: Iterable[Line], foresee: Foresee) -> None:
        """Passes if one more job may wait.

        Raises:
            Busy: too many wait already; it tells when there will be room, and how long the job would wait.
        """
        rivals = [line for line in waiting if line.priority <= job.priority]
        own = [line for line in rivals if line.tenant == job.tenant]
        if (count := _jobs(rivals)) >= self.queued_jobs:
            raise _busy(f"the queue is full: {count} jobs wait", foresee(rivals, job))
        if (count := _jobs(own)) >= self.tenant_jobs:
            whose = f"of tenant {job.tenant!r}" if job.tenant else "of callers without a tenant"
            raise _busy(f"{count} jobs {whose} wait, and more may not", foresee(own, job))


def _jobs(lines: Iterable[Line]) -> int:
    return sum(len(line.jobs) for line in lines)


def _busy(what: str, delay: Delay) -> Busy:
    retry_after_seconds = max(delay.room_seconds, _LEAST_RETRY_SECONDS)
    return Busy(
        f"{what}, the estimated wait is {delay.wait_seconds:.0f} s; "
        f"compile locally, ask again in {retry_after_seconds:.0f} s, or add workers",
        retry_after_seconds=retry_after_seconds,
        estimated_wait_seconds=delay.wait_seconds,
    )
