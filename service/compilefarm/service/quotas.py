"""Quotas of uploads: how much each tenant may send within an hour.

Blobs that nobody names leave a store that is full after LEASE_SECONDS, and not before. So this is also how much of a
store one tenant can keep from the others.
"""

from __future__ import annotations

from collections import OrderedDict, deque

from compilefarm.core.errors import StoreFull
from compilefarm.service.clock import Clock
from compilefarm.store.uses import LEASE_SECONDS

# Sums are kept for parts of the time, not for single uploads.
_PART_SECONDS = LEASE_SECONDS / 12
# Where nobody is asked who calls, tenants are what callers say.
_MOST_TENANTS = 10_000


class _Sum:
    def __init__(self) -> None:
        self.size_bytes = 0
        # Parts of the time, by their number, with what was sent in each.
        self.parts: deque[tuple[int, int]] = deque()


class Quotas:
    """Counts what tenants have sent in the last hour.

    Args:
        limit_bytes: of each; None: as much as it likes.
        clock: time.
    """

    def __init__(self, *, limit_bytes: int | None, clock: Clock) -> None:
        self._limit_bytes = limit_bytes
        self._clock = clock
        # The one that sent something longest ago first: tenants may be what callers say, and there may be any number.
        self._sums: OrderedDict[str, _Sum] = OrderedDict()

    def take(self, size_bytes: int, *, tenant: str) -> None:
        """Counts what a tenant sends.

        Raises:
            StoreFull: it is too much; it is not counted then.
        """
        if self._limit_bytes is None:
            return
        part = int(self._clock.monotonic() // _PART_SECONDS)
        oldest_part = part - int(LEASE_SECONDS // _PART_SECONDS)
        self._forget(before=oldest_part)
        own = self._sums.get(tenant, _Sum())
        _forget_parts(own, before=oldest_part)
        if own.size_bytes + size_bytes > self._limit_bytes:
            raise StoreFull(
                f"tenant {tenant!r} has sent {own.size_bytes} bytes within the hour, and may send {self._limit_bytes}: "
                "compile locally, or have --tenant-upload-limit raised"
            )
        own.size_bytes += size_bytes
        earlier = own.parts.pop()[1] if own.parts and own.parts[-1][0] == part else 0
        own.parts.append((part, earlier + size_bytes))
        self._sums[tenant] = own
        self._sums.move_to_end(tenant)

    def _forget(self, *, before: int) -> None:
        """Forgets the tenants that have sent nothing since, and the oldest of too many."""
        while self._sums:
            oldest = next(iter(self._sums.values()))
            if oldest.parts[-1][0] >= before and len(self._sums) < _MOST_TENANTS:
                return
            self._sums.popitem(last=False)


def _forget_parts(own: _Sum, *, before: int) -> None:
    while own.parts and own.parts[0][0] < before:
        own.size_bytes -= own.parts.popleft()[1]
