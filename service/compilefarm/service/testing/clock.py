"""A clock that stands still."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from compilefarm.service.clock import Timer


@dataclass(slots=True, kw_only=True)
class _ManualTimer:
    due_seconds: float
    callback: Callable[[], None]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


@dataclass(slots=True)
class ManualClock:
    """A clock that stands still until it is moved on."""

    _seconds: float = 0.0
    _timers: list[_ManualTimer] = field(default_factory=list)

    def monotonic(self) -> float:
        """See Clock.monotonic."""
        return self._seconds

    def now(self) -> datetime:
        """See Clock.now."""
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self._seconds)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """See Clock.call_later."""
        timer = _ManualTimer(due_seconds=self._seconds + seconds, callback=callback)
        self._timers.append(timer)
        return timer

    def advance(self, seconds: float) -> None:
        """Lets that much time pass; calls what has become due."""
        self._seconds += seconds
        due = sorted(
            (each for each in self._timers if each.due_seconds <= self._seconds), key=lambda each: each.due_seconds
        )
        self._timers = [timer for timer in self._timers if timer.due_seconds > self._seconds]
        for timer in due:
            if not timer.cancelled:
                timer.callback()
