"""The requests that wait for a job: they decide its priority, and it is cancelled without any."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from compilefarm.service.clock import Clock, Timer
from compilefarm.service.priorities import Priority


def _nothing() -> None:
    """For jobs of which nobody has to be told."""


class Waiters:
    """The requests that wait for a job. The most urgent one sets the job's priority: a more urgent one that comes does
    so at once, and one that goes away counts for a grace time yet, in case it comes back.

    A prewarm request counts for ever: it wants the result to be there later.

    Attributes:
        priority: of the job, as it stands at this moment.

    Args:
        priority: of the request that the job begins with.
        clock: time.
        grace_seconds: see above.
        on_change: called when the priority has changed.
        on_abandoned: called when the grace time has passed and nobody wants the job any more.
    """

    def __init__(
        self,
        priority: Priority,
        *,
        clock: Clock,
        grace_seconds: float = 0.0,
        on_change: Callable[[], None] = _nothing,
        on_abandoned: Callable[[], None] = _nothing,
    ) -> None:
        self.priority = priority
        self._clock = clock
        self._grace_seconds = grace_seconds
        self._on_change = on_change
        self._on_abandoned = on_abandoned
        self._counts: Counter[Priority] = Counter()
        self._is_prewarm = False
        self._grace: Timer | None = None
        self._closed = False

    @property
    def count(self) -> int:
        """Requests that wait at this moment."""
        return self._counts.total()

    @contextmanager
    def waiting(self, priority: Priority) -> Iterator[None]:
        """Counts a request for as long as the context lasts."""
        self._counts[priority] += 1
        self._is_prewarm |= priority is Priority.PREWARM
        self._review()
        try:
            yield
        finally:
            self._counts[priority] -= 1
            self._review()

    def close(self) -> None:
        """Ends all callbacks: the job is over."""
        self._closed = True
        self._end_grace()
        # They know the job, which knows its waiters: it would stay in memory until Python looks for circles.
        self._on_change = self._on_abandoned = _nothing

    def _wanted(self) -> Priority | None:
        priorities = [priority for priority, count in self._counts.items() if count]
        return min(priorities, default=Priority.PREWARM if self._is_prewarm else None)

    def _review(self) -> None:
        if self._closed:
            return
        self._end_grace()
        wanted = self._wanted()
        if wanted is None or wanted > self.priority:
            self._grace = self._clock.call_later(self._grace_seconds, self._settle)
        elif wanted < self.priority:
            self._change(wanted)

    def _settle(self) -> None:
        self._grace = None
        wanted = self._wanted()
        if wanted is None:
            self._on_abandoned()
        else:
            self._change(wanted)

    def _change(self, priority: Priority) -> None:
        self.priority = priority
        self._on_change()

    def _end_grace(self) -> None:
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None
