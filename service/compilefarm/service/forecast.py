"""Forecasts when waiting jobs start."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Sequence, Set
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
    order: Iterable[ActiveJob], *, roster: Roster, leases: Iterable[Lease], durations: Durations, now_seconds: float
) -> dict[ActiveJob, Outlook]:
    """Simulates the queue: every job takes as long as its kind, and no other job comes.

    Args:
        order: the jobs that wait, the next one first.
        roster: the workers.
        leases: the jobs that have a worker.
        durations: what is known of how long jobs take.
        now_seconds: the time, by the clock of the leases.

    Returns:
        What each job can expect, in their order.
    """
    free, preemptible = _workers(roster, leases=leases, durations=durations, now_seconds=now_seconds)
    simulation = _Simulation(free, preemptible=preemptible)
    outlooks = {}
    for job in order:
        # One for which there is no worker will be told so at the next look.
        if fitting := roster.fitting(job.requirement):
            choice = simulation.choice(job.requirement.content, names=fitting)
            ahead = simulation.ahead(choice)
            worker, wait_seconds = choice.soonest(takes_back=job.priority is Priority.INTERACTIVE)
            simulation.take(worker, until_seconds=wait_seconds + durations.estimate(job.kind))
            choice.jobs += 1
            outlooks[job] = Outlook(jobs_ahead=ahead, wait_seconds=wait_seconds)
    return outlooks


class _Simulation:
    """Workers as they are given away.

    Args:
        free: in how many seconds each is free, by its name.
        preemptible: names of those that may be taken back.
    """

    def __init__(self, free: dict[str, float], *, preemptible: set[str]) -> None:
        self._free = free
        self._preemptible = preemptible
        # By what jobs require, which callers may each word otherwise, and by the workers that this comes down to.
        self._of_requirements: dict[bytes, _Choice] = {}
        self._choices: dict[tuple[str, ...], _Choice] = {}
        self._overlaps: dict[tuple[_Choice, _Choice], bool] = {}

    def choice(self, requirement: bytes, *, names: Sequence[str]) -> _Choice:
        """The workers that jobs of a requirement may have."""
        if requirement not in self._of_requirements:
            self._of_requirements[requirement] = self._choice_of(tuple(names))
        return self._of_requirements[requirement]

    def _choice_of(self, names: tuple[str, ...]) -> _Choice:
        if names not in self._choices:
            self._choices[names] = _Choice(names, free=self._free, preemptible=self._preemptible)
        return self._choices[names]

    def ahead(self, choice: _Choice) -> int:
        """How many jobs have been given a worker that one with this choice could have had."""
        return sum(other.jobs for other in self._choices.values() if self._overlap(choice, other))

    def take(self, worker: str, *, until_seconds: float) -> None:
        """Gives a worker away."""
        self._free[worker] = until_seconds
        self._preemptible.discard(worker)
        for choice in self._choices.values():
            choice.note(worker)

    def _overlap(self, one: _Choice, other: _Choice) -> bool:
        if one is other:
            return True
        if (one, other) not in self._overlaps:
            self._overlaps[one, other] = not one.names.isdisjoint(other.names)
        return self._overlaps[one, other]


class _Choice:
    """The workers that fit a requirement, the one that is free first before the others.

    Attributes:
        names: of the workers.
        jobs: that have been given one with this choice.
    """

    def __init__(self, names: Sequence[str], *, free: dict[str, float], preemptible: Set[str]) -> None:
        self.names = frozenset(names)
        self.jobs = 0
        self._free = free
        self._preemptible = preemptible
        self._positions = {name: position for position, name in enumerate(names)}
        # What was noted since is in it once more; what is no longer so is passed over.
        self._soonest = [(free[name], position, name) for name, position in self._positions.items()]
        heapq.heapify(self._soonest)
        self._revocable = deque(name for name in names if name in preemptible)

    def note(self, worker: str) -> None:
        """Notes that a worker is free at another time."""
        if worker in self.names:
            heapq.heappush(self._soonest, (self._free[worker], self._positions[worker], worker))

    def soonest(self, *, takes_back: bool) -> tuple[str, float]:
        """The worker that is free first, of several the first in their order, and in how many seconds it is.

        Args:
            takes_back: whether one that may be taken back is free at once.
        """
        while self._soonest[0][0] != self._free[self._soonest[0][2]]:
            heapq.heappop(self._soonest)
        seconds, position, name = self._soonest[0]
        revocable = self._first_revocable() if takes_back else None
        if revocable is not None and (0.0, self._positions[revocable]) < (seconds, position):
            return revocable, 0.0
        return name, seconds

    def _first_revocable(self) -> str | None:
        while self._revocable and self._revocable[0] not in self._preemptible:
            self._revocable.popleft()
        return self._revocable[0] if self._revocable else None


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
