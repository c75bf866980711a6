"""How often an account may do something within an hour."""

from __future__ import annotations

from collections import deque

from compilefarm.service.clock import Clock

_HOUR_SECONDS = 3600.0
# Addresses are accounts where nobody is asked who calls.
_MOST_ACCOUNTS = 10_000


class HourlyLimits:
    """Counts what accounts do.

    Args:
        most: times in an hour.
        clock: time.
    """

    def __init__(self, *, most: int, clock: Clock) -> None:
        self._most = most
        self._clock = clock
        # The one that did something longest ago first.
        self._times: dict[str, deque[float]] = {}

    def take(self, account: str) -> bool:
        """Counts one time, if the account may do it once more; whether it may."""
        now = self._clock.monotonic()
        self._forget(now - _HOUR_SECONDS)
        times = self._times.get(account, deque())
        while times and times[0] <= now - _HOUR_SECONDS:
            times.popleft()
        if len(times) >= self._most:
            return False
        times.append(now)
        self._times.pop(account, None)
        self._times[account] = times
        return True

    def _forget(self, before_seconds: float) -> None:
        """Forgets accounts that have done nothing since, and the oldest of too many."""
        while self._times:
            oldest, times = next(iter(self._times.items()))
            if times[-1] > before_seconds and len(self._times) < _MOST_ACCOUNTS:
                return
            del self._times[oldest]
