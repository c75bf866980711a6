"""A clock that stands still."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from compilefarm.service.clock import Timer


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _ManualTimer:
    due_seconds: float
    callback: Callable[[], None]
    timers: list[_ManualTimer]

    def cancel(self) -> None:
        if self in self.timers:
            self.timers.remove(self)


class ManualClock:
    """A clock that stands still until it is moved on. Satisfies compilefarm.service.clock.Clock."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._timers: list[_ManualTimer] = []
        self._timer_set = asyncio.Event()

    def monotonic(self) -> float:
        """See Clock.monotonic."""
        return self._seconds

    def now(self) -> datetime:
        """See Clock.now."""
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self._seconds)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """See Clock.call_later."""
        timer = _ManualTimer(due_seconds=self._seconds + seconds, callback=callback, timers=self._timers)
        self._timers.append(timer)
        self._timer_set.set()
        # What is due now does not wait for time to pass.
        asyncio.get_running_loop().call_soon(self.advance, 0.0)
        return timer

    async def wait_for_timer(self, seconds: float, *, count: int = 1) -> None:
        """Waits until so many timers are set that go off in exactly that many seconds."""
        while sum(timer.due_seconds == self._seconds + seconds for timer in self._timers) < count:
            self._timer_set.clear()
            await self._timer_set.wait()

    def advance(self, seconds: float) -> None:
        """Lets that much time pass; calls what has become due."""
        self._seconds += seconds
        due = [timer for timer in self._timers if timer.due_seconds <= self._seconds]
        for timer in sorted(due, key=lambda timer: timer.due_seconds):
            timer.cancel()
            timer.callback()
