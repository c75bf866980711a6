"""A clock, and the budget of seconds that a graph may spend."""

from __future__ import annotations

import math
import time
from typing import Protocol

from compilefarm.core.errors import OutOfTime


class Clock(Protocol):
    """Tells the time, and waits."""

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
    """Seconds that may be spent on one graph, counted from now on; `math.inf` for no limit."""

    def __init__(self, seconds: float, *, clock: Clock) -> None:
        self._seconds = seconds
        self._clock = clock
        self._start = clock.now()

    def left(self) -> float:
        """Seconds left, more than zero.

        Raises:
            OutOfTime: none are.
        """
        left = self._seconds - self.spent()
        if left <= 0:
            raise OutOfTime(
                f"the farm has no answer within {self._seconds:g} s: prewarm this graph, or raise timeout_seconds"
            )
        return left

    def timeout(self) -> float | None:
        """The seconds that are left as gRPC takes them: None if there is no limit.

        Raises:
            OutOfTime: none are left.
        """
        left = self.left()
        return None if left == math.inf else left

    def spent(self) -> float:
        """Seconds since the budget was made."""
        return self._clock.now() - self._start

    def allows(self, seconds: float) -> bool:
        """Whether that many seconds may still be spent."""
        return self.spent() + seconds < self._seconds

    def wait(self, seconds: float) -> None:
        """Waits for so many seconds."""
        self._clock.wait(seconds)
