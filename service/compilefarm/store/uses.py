"""Leases and last uses of objects: what eviction must not remove, and what it removes first.

Within this process every use is known. Others that share the storage see the time of an object below `used/`, which is
renewed at most every RENEWAL_SECONDS, so they know of a use too, only not precisely when it was.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from compilefarm.core.errors import StoreUnavailable
from compilefarm.store.backend import Backend
from compilefarm.store.layout import use_path

# Seconds since 1970.
Now = Callable[[], float]

# What was used within this time is not evicted: whoever has been given a manifest has that long to fetch its blobs.
LEASE_SECONDS = 3600.0
RENEWAL_SECONDS = LEASE_SECONDS / 4
# Uses whose lease is over are forgotten when there are more than these.
_MOST_REMEMBERED = 10_000
# With each use that is noted. To look through all of hundreds of thousands kept everybody waiting.
_FORGOTTEN_AT_ONCE = 4
_logger = logging.getLogger(__name__)


class Uses:
    """Uses of the objects of a backend.

    Attributes:
        now: seconds since 1970.

    Args:
        backend: where they lie.
        now: seconds since 1970.
    """

    def __init__(self, backend: Backend, *, now: Now) -> None:
        self._backend = backend
        self.now = now
        self._held: Counter[str] = Counter()
        # Those noted last at the end.
        self._used: OrderedDict[str, float] = OrderedDict()
        self._told: OrderedDict[str, float] = OrderedDict()
        self._ending: dict[str, asyncio.Event] = {}

    @asynccontextmanager
    async def holding(self, path: str) -> AsyncIterator[None]:
        """Keeps an object, whether it is there or not, from being deleted inside. Waits if that is under way."""
        self._held[path] += 1
        try:
            if path in self._ending:
                await self._ending[path].wait()
            yield
        finally:
            self._held[path] -= 1
            if not self._held[path]:
                del self._held[path]

    async def note(self, path: str, *, written_seconds: float = 0.0) -> None:
        """Begins the lease of an object that is held, and notes its use for other services.

        Args:
            path: the path of the object.
            written_seconds: when it was written, if that is known: the others see that by themselves.
        """
        now = self._used[path] = self.now()
        self._used.move_to_end(path)
        told = max(self._told.get(path, 0.0), written_seconds)
        is_known = is_within(RENEWAL_SECONDS, since_seconds=told, now_seconds=now)
        self._told[path] = told if is_known else now
        self._told.move_to_end(path)
        self._forget_old()
        if is_known:
            return
        try:
            await self._backend.touch(use_path(path))
        except StoreUnavailable as error:
            # What is there is served from a full disk, too.
            _logger.warning("cannot note that %s is in use, so another service may evict it: %s", path, error)

    def used_seconds(self, path: str) -> float:
        """Returns when this process last used an object; zero if that is not known."""
        return self._used.get(path, 0.0)

    def has_lease(self, path: str, *, told_seconds: float = 0.0) -> bool:
        """Returns whether an object has to stay.

        Args:
            path: the path of the object.
            told_seconds: when others used it, as far as they say.
        """
        used_seconds = max(self.used_seconds(path), told_seconds)
        return path in self._held or self._is_leased(used_seconds)

    async def end(self, path: str) -> bool:
        """Deletes an object unless it has to stay; returns whether it was deleted."""
        # Whoever ends it already waits for the storage.
        if self.has_lease(path) or path in self._ending:
            return False
        # From here on those who come wait, and then find that it is gone.
        self._ending[path] = gone = asyncio.Event()
        try:
            # Another service may have used it since it was listed, or may have written it anew.
            stored, use = await self._backend.find_object(path), await self._backend.find_object(use_path(path))
            told_seconds = max((found.modified_seconds for found in (stored, use) if found is not None), default=0.0)
            if self.has_lease(path, told_seconds=told_seconds):
                return False
            await self._backend.delete(path)
            if use is not None:
                await self._backend.delete(use.path)
            self._told.pop(path, None)
            return True
        finally:
            del self._ending[path]
            gone.set()

    def _is_leased(self, used_seconds: float) -> bool:
        return is_within(LEASE_SECONDS, since_seconds=used_seconds, now_seconds=self.now())

    def _forget_old(self) -> None:
        """Forgets uses whose lease is over, the oldest first and a few at a time: one after the other is noted."""
        # The others were told of these, so it stays known, within RENEWAL_SECONDS, when they were used.
        for uses in (self._used, self._told):
            for _ in range(_FORGOTTEN_AT_ONCE):
                path, used_seconds = next(iter(uses.items()), ("", 0.0))
                if len(uses) <= _MOST_REMEMBERED or self._is_leased(used_seconds):
                    break
                del uses[path]


def is_within(seconds: float, *, since_seconds: float, now_seconds: float) -> bool:
    """Returns whether no more than that has passed since a moment. Clocks differ a little, and what one said of a time
    long after this was wrong: it was set back since.
    """
    return abs(now_seconds - since_seconds) < seconds
