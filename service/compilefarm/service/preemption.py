"""Which preemptible jobs have to make room."""

from __future__ import annotations

from collections.abc import Iterable

from compilefarm.service.matching import Roster
from compilefarm.service.priorities import Priority
from compilefarm.service.tickets import Loan, Ticket


def to_be_revoked(waiting: Iterable[Ticket], *, loans: Iterable[Loan], roster: Roster) -> list[Loan]:
    """The loans to take back so that every interactive job gets a worker, as far as preemptible jobs have them: those
    that began last, since the least is lost with them.

    Args:
        waiting: jobs that found no idle worker.
        loans: the jobs that have one.
        roster: the workers.
    """
    by_age = sorted(loans, key=lambda loan: -loan.since_seconds)
    coming = [loan for loan in by_age if loan.is_revoked]
    preemptible = [loan for loan in by_age if loan.ticket.demand.priority.is_preemptible and not loan.is_revoked]
    chosen = []
    for ticket in waiting:
        if ticket.demand.priority is not Priority.INTERACTIVE:
            continue
        fitting = roster.fitting(ticket.wanted)
        if awaited := _first_of(fitting, among=coming):
            coming.remove(awaited)
        elif taken := _first_of(fitting, among=preemptible):
            preemptible.remove(taken)
            chosen.append(taken)
    return chosen


def _first_of(names: list[str], *, among: list[Loan]) -> Loan | None:
    return next((loan for loan in among if loan.worker in names), None)
