"""Quotas of uploads: how much each tenant may send within an hour.

Blobs that nobody names leave a store that is full after LEASE_SECONDS, and not before. So this is also how much of a
store one tenant can keep from the others.
"""

from __future__ import annotations

from collections import deque

from compilefarm.core.errors import StoreFull
from compilefarm.service.clock import Clock
from compilefarm.store.uses import LEASE_SECONDS

# Sums are kept for parts of the time, not for single uploads.
_PART_SECONDS = LEASE_SECONDS / 12


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
        self._sums: dict[str, _Sum] = {}

    def take(self, size_bytes: int, *, tenant: str) -> None:
        """Counts what a tenant sends.

        Raises:
            StoreFull: it is too much; it is not counted then.
        """
        if self._limit_bytes is None:
            return
        part = int(self._clock.monotonic() // _PART_SECONDS)
        self._forget(before=part - int(LEASE_SECONDS // _PART_SECONDS))
        own = self._sums.setdefault(tenant, _Sum())
        if own.size_bytes + size_bytes > self._limit_bytes:
            raise StoreFull(
                f"tenant {tenant!r} has sent {own.size_bytes} bytes within the hour, and may send {self._limit_bytes}: "
                "compile locally, or have --tenant-upload-limit raised"
            )
        own.size_bytes += size_bytes
        earlier = own.parts.pop()[1] if own.parts and own.parts[-1][0] == part else 0
        own.parts.append((part, earlier + size_bytes))

    def _forget(self, *, before: int) -> None:
        for tenant, own in list(self._sums.items()):
            while own.parts and own.parts[0][0] < before:
                own.size_bytes -= own.parts.popleft()[1]
            if not own.parts:
                del self._sums[tenant]
