"""Leases are counted as they come and go, by what they count for at that moment."""

from __future__ import annotations

from compilefarm.service.leases import Lease, Leases
from compilefarm.service.priorities import Priority
from compilefarm.service.testing import ManualClock, active_job


async def test_a_job_that_is_joined_by_an_urgent_request_counts_as_urgent() -> None:
    leases = Leases()
    job = active_job(clock=ManualClock(), tenant="red", priority=Priority.PREWARM)
    lease = Lease(job, worker="one", since_seconds=0.0)
    leases.add(lease)
    assert (leases.executing, leases.has_preemptible) == ({(True, "red"): 1}, True)

    with job.waiters.waiting(Priority.INTERACTIVE):
        leases.renew(job)
    assert (leases.executing, leases.has_preemptible) == ({(False, "red"): 1}, False)

    leases.remove(lease)
    assert (leases.executing, list(leases)) == ({}, [])


def test_a_job_without_a_worker_counts_for_nobody() -> None:
    leases = Leases()
    leases.renew(active_job(clock=ManualClock()))
    assert leases.executing == {}
