"""Lines of waiting jobs: those that are alike stand in one line, in the order in which they came.

However many jobs wait, they are of few tenants, priorities and environments. Whether a worker can be given is the same
question for all jobs of a line, so it is asked for the first one alone.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field

from compilefarm.service.active_job import ActiveJob
from compilefarm.service.fairness import Group, group_of
from compilefarm.service.matching import Requirement
from compilefarm.service.priorities import Priority

# The environment, the priority, the tenant, and the workers that were lost already.
_Place = tuple[bytes, Priority, str, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Line:
    """Jobs that any worker that can be given to one of them can be given to.

    Attributes:
        requirement: the environment that they need.
        priority: of each.
        tenant: of each.
        group: with which they share workers.
        jobs: those that came first first; never empty.
    """

    requirement: Requirement
    priority: Priority
    tenant: str
    group: Group
    jobs: list[ActiveJob] = field(default_factory=list)


class Lines:
    """The lines, and in which of them each job stands."""

    def __init__(self) -> None:
        self._lines: dict[_Place, Line] = {}
        self._places: dict[ActiveJob, _Place] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Line]:
        return iter(self._lines.values())

    def __contains__(self, job: object) -> bool:
        return job in self._places

    def jobs(self) -> Iterator[ActiveJob]:
        """All jobs, in no particular order."""
        return iter(self._places)

    def add(self, job: ActiveJob) -> None:
        """Puts a job into its line."""
        place = _place_of(job)
        if place not in self._lines:
            self._lines[place] = Line(
                requirement=job.requirement, priority=job.priority, tenant=job.tenant, group=group_of(job)
            )
        insort(self._lines[place].jobs, job, key=_number)
        self._places[job] = place

    def remove(self, job: ActiveJob) -> None:
        """Takes a job out of its line, if it stands in one."""
        place = self._places.pop(job, None)
        if place is None:
            return
        jobs = self._lines[place].jobs
        del jobs[bisect_left(jobs, job.number, key=_number)]
        if not jobs:
            del self._lines[place]

    def renew(self, job: ActiveJob) -> None:
        """Puts a job whose priority has changed into another line, if it stands in one."""
        if job in self._places:
            self.remove(job)
            self.add(job)


def _place_of(job: ActiveJob) -> _Place:
    return job.requirement.content, job.priority, job.tenant, tuple(job.lost_workers)


def _number(job: ActiveJob) -> int:
    return job.number
