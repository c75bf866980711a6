"""Time as the client sees it: a clock, and the budget that a graph may spend."""

from __future__ import annotations

import time
from typing import Protocol

from compilefarm.core.errors import OutOfTime


class Clock(Protocol):
    """What tells the time and lets it pass."""

    def now(self) -> float:
        """Seconds since some fixed moment."""

    def wait(self, seconds: float) -> None:
        """Returns when that many seconds have passed."""


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        return time.monotonic()

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)


class Budget:
    """Seconds that may be spent on one graph, counted from now on."""

    def __init__(self, seconds: float, *, clock: Clock) -> None:
        self._seconds = seconds
        self._clock = clock
        self._end = clock.now() + seconds

    def left(self) -> float:
        """Seconds left, more than zero.

        Raises:
            OutOfTime: none are.
        """
        left = self._end - self._clock.now()
        if left <= 0:
            raise OutOfTime(
                f"the farm has no answer within {self._seconds:g} s: prewarm this graph, or raise timeout_seconds"
            )
        return left

    def allows(self, seconds: float) -> bool:
        """Whether that many seconds may still be spent."""
        return self._clock.now() + seconds < self._end

    def wait(self, seconds: float) -> None:
        """Lets time pass."""
        self._clock.wait(seconds)
