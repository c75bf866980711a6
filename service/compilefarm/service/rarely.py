"""Tells when a line of a log about an account is due, so that nobody fills a log with what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable

_EVERY_SECONDS = 10.0
_MOST_ACCOUNTS = 1000


class Rarely:
    """Says for each account once in a while that something may be told of it.

    Args:
        now: seconds, since any moment.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        # When it was last told, the longest ago first.
        self._told: dict[str, float] = {}

    def is_due(self, account: str) -> bool:
        """Returns whether something may be told of an account now; then it was told."""
        now_seconds = self._now()
        if now_seconds - self._told.get(account, -math.inf) < _EVERY_SECONDS:
            return False
        self._told.pop(account, None)
        self._told[account] = now_seconds
        if len(self._told) > _MOST_ACCOUNTS:
            del self._told[next(iter(self._told))]
        return True
