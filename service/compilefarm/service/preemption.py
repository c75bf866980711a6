"""Chooses the preemptible jobs that have to make room."""

from __future__ import annotations

from collections.abc import Iterable, Set

from compilefarm.service.active_job import ActiveJob
from compilefarm.service.leases import Lease
from compilefarm.service.matching import Roster


def to_be_revoked(waiting: Iterable[ActiveJob], *, leases: Iterable[Lease], roster: Roster) -> list[Lease]:
    """The leases to take back so that every interactive job gets a worker, as far as preemptible jobs have them: those
    that began last, since the least is lost with them.

    Args:
        waiting: interactive jobs that found no idle worker.
        leases: the jobs that have one.
        roster: the workers.
    """
    by_age = sorted(leases, key=lambda lease: -lease.since_seconds)
    coming = [lease for lease in by_age if lease.is_revoked]
    preemptible = [lease for lease in by_age if lease.job.priority.is_preemptible and not lease.is_revoked]
    chosen = []
    # Environments for which nothing more can be taken back.
    exhausted: set[bytes] = set()
    for job in waiting:
        if job.requirement.content in exhausted:
            continue
        fitting = roster.names(job.requirement)
        if awaited := _first_of(fitting, among=coming):
            coming.remove(awaited)
        elif taken := _first_of(fitting, among=preemptible):
            preemptible.remove(taken)
            chosen.append(taken)
        else:
            exhausted.add(job.requirement.content)
    return chosen


def _first_of(names: Set[str], *, among: list[Lease]) -> Lease | None:
    return next((lease for lease in among if lease.worker in names), None)
