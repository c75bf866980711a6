"""Limits of waiting jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from compilefarm.core.errors import Busy
from compilefarm.service.active_job import ActiveJob
from compilefarm.service.forecast import Outlook

# Tells what each of some waiting jobs can expect.
Foresee = Callable[[Iterable[ActiveJob]], Mapping[ActiveJob, Outlook]]

_LEAST_RETRY_SECONDS = 1.0


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

    def require_room(self, job: ActiveJob, *, waiting: Iterable[ActiveJob], foresee: Foresee) -> None:
        """Passes if one more job may wait.

        Raises:
            Busy: too many wait already; it tells when there will be room, and how long the job would wait.
        """
        rivals = [other for other in waiting if other.priority <= job.priority]
        own = [other for other in rivals if other.tenant == job.tenant]
        if len(rivals) >= self.queued_jobs:
            raise _busy(f"the queue is full: {len(rivals)} jobs wait", job, rivals=rivals, foresee=foresee)
        if len(own) >= self.tenant_jobs:
            whose = f"of tenant {job.tenant!r}" if job.tenant else "of callers without a tenant"
            raise _busy(f"{len(own)} jobs {whose} wait, and more may not", job, rivals=own, foresee=foresee)


def _busy(what: str, job: ActiveJob, *, rivals: Sequence[ActiveJob], foresee: Foresee) -> Busy:
    outlooks = foresee([*rivals, job])
    wait_seconds = outlooks[job].wait_seconds
    room_seconds = min((outlooks[rival].wait_seconds for rival in rivals if rival in outlooks), default=0.0)
    retry_after_seconds = max(room_seconds, _LEAST_RETRY_SECONDS)
    return Busy(
        f"{what}, the estimated wait is {wait_seconds:.0f} s; "
        f"compile locally, ask again in {retry_after_seconds:.0f} s, or add workers",
        retry_after_seconds=retry_after_seconds,
        estimated_wait_seconds=wait_seconds,
    )
