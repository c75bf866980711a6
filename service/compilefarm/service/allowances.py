"""Limits of bytes in transit, for each account and for all together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from compilefarm.core.errors import Busy

_RETRY_SECONDS = 2.0

# Counts further bytes.
Add = Callable[[int], None]


class Allowance:
    """Counts bytes in transit until they are released, also those of callers who left.

    Args:
        account_bytes: of one account.
        all_bytes: of all.
    """

    def __init__(self, *, account_bytes: int, all_bytes: int) -> None:
        self._account_bytes = account_bytes
        self._all_bytes = all_bytes
        self._used: Counter[str] = Counter()

    @property
    def used_bytes(self) -> int:
        """On their way at this moment."""
        return self._used.total()

    def leaves_half(self, account: str, size_bytes: int) -> bool:
        """Returns whether half of what the account may have, and of what all may have, is free with so many further
        bytes. They are not counted.
        """
        used_bytes = self._used[account] + size_bytes, self.used_bytes + size_bytes
        return 2 * used_bytes[0] <= self._account_bytes and 2 * used_bytes[1] <= self._all_bytes

    @contextmanager
    def using(self, account: str) -> Iterator[Add]:
        """Yields what counts further bytes of a call, and raises Busy if they are too many. They count for as long as
        the context lasts.
        """
        own_bytes = 0

        def add(size_bytes: int) -> None:
            nonlocal own_bytes
            self._check(account, size_bytes)
            self._used[account] += size_bytes
            own_bytes += size_bytes

        try:
            yield add
        finally:
            self._used[account] -= own_bytes
            if not self._used[account]:
                del self._used[account]

    def _check(self, account: str, size_bytes: int) -> None:
        if self._used[account] + size_bytes > self._account_bytes:
            raise _busy(f"{account or 'this caller'} has", self._account_bytes)
        if self.used_bytes + size_bytes > self._all_bytes:
            raise _busy("all callers together have", self._all_bytes)


def _busy(who: str, limit_bytes: int) -> Busy:
    return Busy(
        f"{who} {limit_bytes} bytes on their way, and more may not be: ask again when they have arrived",
        retry_after_seconds=_RETRY_SECONDS,
    )
