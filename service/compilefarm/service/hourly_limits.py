"""How often an account may do something within an hour."""

from __future__ import annotations

from collections import deque

from compilefarm.service.clock import Clock

_HOUR_SECONDS = 3600.0


class HourlyLimits:
    """Counts what accounts do.

    Args:
        most: times in an hour.
        clock: time.
    """

    def __init__(self, *, most: int, clock: Clock) -> None:
        self._most = most
        self._clock = clock
        self._times: dict[str, deque[float]] = {}

    def take(self, account: str) -> bool:
        """Counts one time, if the account may do it once more; whether it may."""
        now = self._clock.monotonic()
        times = self._times.setdefault(account, deque())
        while times and times[0] <= now - _HOUR_SECONDS:
            times.popleft()
        if len(times) >= self._most:
            return False
        times.append(now)
        return True
