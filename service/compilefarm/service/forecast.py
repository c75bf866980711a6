"""Forecasts when waiting jobs start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from compilefarm.service.active_job import ActiveJob
from compilefarm.service.durations import Durations
from compilefarm.service.leases import Lease
from compilefarm.service.matching import Roster
from compilefarm.service.priorities import Priority


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """The expected start of a waiting job.

    Attributes:
        jobs_ahead: waiting jobs that come before it and want a worker that it could have.
        wait_seconds: until it starts.
    """

    jobs_ahead: int
    wait_seconds: float

    def after(self, seconds: float) -> Outlook:
        """The same, that much later."""
        return replace(self, wait_seconds=max(self.wait_seconds - seconds, 0.0))


HAS_STARTED = Outlook(jobs_ahead=0, wait_seconds=0.0)


def forecast(
    order: Sequence[ActiveJob], *, roster: Roster, leases: Iterable[Lease], durations: Durations, now_seconds: float
) -> dict[ActiveJob, Outlook]:
    """Simulates the queue: every job takes as long as its kind, and no other job comes.

    Args:
        order: the jobs that wait, the next one first.
        roster: the workers.
        leases: the jobs that have a worker.
        durations: what is known of how long jobs take.
        now_seconds: the time, by the clock of the leases.

    Returns:
        What each job can expect.
    """
    free, preemptible = _workers(roster, leases=leases, durations=durations, now_seconds=now_seconds)
    before: Counter[tuple[str, ...]] = Counter()
    outlooks = {}
    for job in order:
        fitting = tuple(roster.fitting(job.requirement))
        if not fitting:
            # It will be told so at the next look.
            continue
        takes_back = job.priority is Priority.INTERACTIVE
        starts = {name: 0.0 if takes_back and name in preemptible else free[name] for name in fitting}
        worker = min(fitting, key=starts.__getitem__)
        ahead = sum(count for others, count in before.items() if not starts.keys().isdisjoint(others))
        outlooks[job] = Outlook(jobs_ahead=ahead, wait_seconds=starts[worker])
        free[worker] = starts[worker] + durations.estimate(job.kind)
        preemptible.discard(worker)
        before[fitting] += 1
    return outlooks


def _workers(
    roster: Roster, *, leases: Iterable[Lease], durations: Durations, now_seconds: float
) -> tuple[dict[str, float], set[str]]:
    """Returns in how many seconds each worker is free, and the names of those that may be taken back."""
    free = {worker.name: 0.0 for worker in roster.workers}
    preemptible = set()
    for lease in leases:
        if not lease.is_revoked:
            left_seconds = durations.estimate(lease.job.kind) - (now_seconds - lease.since_seconds)
            free[lease.worker] = max(left_seconds, 0.0)
        if lease.job.priority.is_preemptible:
            preemptible.add(lease.worker)
    return free, preemptible
