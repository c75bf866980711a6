"""Fairness: which of the waiting jobs comes next.

Workers are shared among tenants by the rule of Buildbarn's scheduler (bb-remote-execution, InMemoryBuildQueue): the job
with the lowest (executing + 1) * 2^(priority / 100) comes first, where `executing` counts the jobs of its tenant that
have a worker; among equals that of the tenant whose last turn is longest ago, and of its jobs the one that came first.
So an interactive job comes before a background job of another tenant until its own tenant has seven jobs running.

Preemptible jobs come after all others, whatever the formula says: one that started before an interactive job would be
ended by it at once. They are shared by the same rule, but apart: what can be taken back is not held against a tenant.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

from compilefarm.service.priorities import Priority


class Waiting(Protocol):
    """The part of a waiting job that fairness needs."""

    @property
    def number(self) -> int:
        """Jobs are numbered as they come."""

    @property
    def priority(self) -> Priority:
        """The priority of the job."""

    @property
    def tenant(self) -> str:
        """For whom it is done."""


_T = TypeVar("_T", bound=Waiting)
# Jobs that count together: those of one tenant, preemptible or not.
Group = tuple[bool, str]


def group_of(job: Waiting) -> Group:
    """The group that a job counts for."""
    return job.priority.is_preemptible, job.tenant


class Shares:
    """The workers that each group has.

    Args:
        executing: jobs of each group that have a worker.
        turns: number of the last turn of each group; turns are numbered as workers are given away.
    """

    def __init__(self, *, executing: Mapping[Group, int], turns: Mapping[Group, int]) -> None:
        self.turns = dict(turns)
        self._executing = Counter(executing)
        self._turn = max(self.turns.values(), default=0)

    def rank(self, job: Waiting) -> tuple[bool, float, int, int]:
        """Decides whose turn it is: the lowest is next."""
        group = group_of(job)
        score = (self._executing[group] + 1) * 2.0 ** (job.priority / 100)
        return job.priority.is_preemptible, score, self.turns.get(group, 0), job.number

    def take(self, job: Waiting) -> None:
        """Notes that a job gets a worker."""
        self._turn += 1
        group = group_of(job)
        self._executing[group] += 1
        self.turns[group] = self._turn


def in_order(lines: Iterable[Sequence[_T]], *, shares: Shares) -> Iterator[_T]:
    """Yields waiting jobs in the order in which they would get workers if none came and none were given back.

    Args:
        lines: those that wait: in each, jobs of one group and priority, by their number.
        shares: as they are before the first; used up.
    """
    groups: dict[Group, list[Sequence[_T]]] = {}
    for line in lines:
        groups.setdefault(group_of(line[0]), []).append(line)
    merged = {group: heapq.merge(*of_group, key=_urgency) for group, of_group in groups.items()}
    # A job that gets a worker changes the rank of its own group alone, so the ranks that lie in the heap stay true.
    heads = [(shares.rank(job), group, job) for group, jobs in merged.items() for job in [next(jobs)]]
    heapq.heapify(heads)
    while heads:
        _, group, job = heapq.heappop(heads)
        yield job
        shares.take(job)
        if (following := next(merged[group], None)) is not None:
            heapq.heappush(heads, (shares.rank(following), group, following))


def _urgency(job: Waiting) -> tuple[Priority, int]:
    return job.priority, job.number
