"""Who wants a job: that decides how urgent it is, and when it is not wanted any more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from compilefarm.service.clock import Clock, Timer
from compilefarm.service.priorities import Priority


@dataclass(slots=True, kw_only=True, eq=False)
class Demand:
    """For whom a job is done, and how urgently.

    Attributes:
        tenant: of the request that the job began with. The job counts as theirs, whoever joins it.
        priority: of the most urgent request, as it stands at this moment.
    """

    tenant: str
    priority: Priority


class Claims:
    """The requests that wait for a job. They set the priority of its demand: a more urgent one does so at once, and one
    that goes away counts for a grace time yet, in case it comes back.

    A prewarm request counts for ever: it wants the result to be there later.

    Attributes:
        demand: of the job.

    Args:
        demand: of the job.
        clock: time.
        grace_seconds: see above.
        on_change: called when the priority has changed.
        on_abandoned: called when the grace time has passed and nobody wants the job any more.
    """

    def __init__(
        self,
        demand: Demand,
        *,
        clock: Clock,
        grace_seconds: float,
        on_change: Callable[[], None],
        on_abandoned: Callable[[], None],
    ) -> None:
        self.demand = demand
        self._clock = clock
        self._grace_seconds = grace_seconds
        self._on_change = on_change
        self._on_abandoned = on_abandoned
        self._waiting: Counter[Priority] = Counter()
        self._is_prewarm = False
        self._grace: Timer | None = None
        self._closed = False

    @property
    def waiting(self) -> int:
        """Requests that wait at this moment."""
        return self._waiting.total()

    @contextmanager
    def hold(self, priority: Priority) -> Iterator[None]:
        """Claims the job for as long as the context lasts."""
        self._waiting[priority] += 1
        self._is_prewarm |= priority is Priority.PREWARM
        self._review()
        try:
            yield
        finally:
            self._waiting[priority] -= 1
            self._review()

    def close(self) -> None:
        """Ends the matter: the job is over."""
        self._closed = True
        self._end_grace()

    def _wanted(self) -> Priority | None:
        priorities = [priority for priority, count in self._waiting.items() if count]
        return min(priorities, default=Priority.PREWARM if self._is_prewarm else None)

    def _review(self) -> None:
        if self._closed:
            return
        self._end_grace()
        wanted = self._wanted()
        if wanted is None or wanted > self.demand.priority:
            self._grace = self._clock.call_later(self._grace_seconds, self._settle)
        elif wanted < self.demand.priority:
            self._change(wanted)

    def _settle(self) -> None:
        self._grace = None
        wanted = self._wanted()
        if wanted is None:
            self._on_abandoned()
        else:
            self._change(wanted)

    def _change(self, priority: Priority) -> None:
        self.demand.priority = priority
        self._on_change()

    def _end_grace(self) -> None:
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None
