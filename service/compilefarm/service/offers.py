"""The workers that are free at one moment, and which of them a job may have."""

from __future__ import annotations

from collections import Counter

from compilefarm.service.active_job import ActiveJob
from compilefarm.service.fairness import Group
from compilefarm.service.leases import Leases
from compilefarm.service.matching import Requirement, Roster
from compilefarm.service.slots import Slots

# In place of an environment: all of them.
_ALL = b""


class Offers:
    """Free workers. What is asked again for the next job of a tenant or an environment is counted once.

    Attributes:
        idle: names of those that are free yet.
        kept: those among the rest that go on with a job from before the gateway started, by the key of that.

    Args:
        roster: the workers.
        leases: the jobs that have one.
        slots: how many a tenant may have.
    """

    def __init__(self, roster: Roster, *, leases: Leases, slots: Slots) -> None:
        idle = roster.idle.difference(leases)
        self.idle = set(idle.difference(roster.kept_for))
        self.kept = {key: name for name, key in roster.kept_for.items() if name in idle}
        self._roster = roster
        self._leases = leases
        self._slots = slots
        # By environment: jobs of each tenant that have a worker which fits and are not preemptible; those workers.
        self._counts: dict[bytes, tuple[Counter[str], frozenset[str]]] = {}
        # By environment: of the workers that fit, so many are not free, counted from the first one.
        self._taken: dict[bytes, int] = {}

    def find(self, job: ActiveJob) -> str | None:
        """Returns the worker that a job can have: the one that goes on with it, or one that it has not lost before,
        where there are others.
        """
        if not (self.idle or self.kept) or not self.has_room(job):
            return None
        if job.key in self.kept:
            return self.kept[job.key]
        if not job.lost_workers:
            return self._first(job.requirement)
        fitting = self._roster.fitting(job.requirement)
        others = [name for name in fitting if name not in job.lost_workers]
        return next((name for name in others or fitting if name in self.idle), None)

    def has_room(self, job: ActiveJob) -> bool:
        """Returns whether the tenant of a job may have one more worker."""
        if job.priority.is_preemptible:
            return True
        counts, _ = self._counted(job.requirement)
        fitting = len(self._roster.fitting(job.requirement))
        return self._slots.has_room(own=counts[job.tenant], fitting=fitting)

    def take(self, job: ActiveJob, *, worker: str) -> None:
        """Notes that a job gets a worker."""
        self.idle.discard(worker)
        if self.kept.get(job.key) == worker:
            del self.kept[job.key]
        if not job.priority.is_preemptible:
            for content, (counts, names) in self._counts.items():
                counts[job.tenant] += content == _ALL or worker in names

    def _first(self, requirement: Requirement) -> str | None:
        fitting = self._roster.fitting(requirement)
        position = self._taken.get(requirement.content, 0)
        while position < len(fitting) and fitting[position] not in self.idle:
            position += 1
        self._taken[requirement.content] = position
        return fitting[position] if position < len(fitting) else None

    def _counted(self, requirement: Requirement) -> tuple[Counter[str], frozenset[str]]:
        content = _ALL if self._slots.counts_all else requirement.content
        if content not in self._counts:
            names = self._roster.names(requirement)
            # Mostly all workers are alike.
            count_all = content == _ALL or len(names) == len(self._roster.workers)
            groups = self._leases.executing if count_all else self._groups_on(names)
            own = Counter({tenant: count for (is_preemptible, tenant), count in groups.items() if not is_preemptible})
            self._counts[content] = own, names
        return self._counts[content]

    def _groups_on(self, names: frozenset[str]) -> Counter[Group]:
        return Counter(lease.group for name, lease in self._leases.items() if name in names)
