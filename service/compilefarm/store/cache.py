"""An LRU cache of what was loaded lately, with single flight."""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from typing import Generic, TypeVar

from compilefarm.store.completing import completed
from compilefarm.store.uses import Now

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Cache(Generic[K, V]):
    """Keeps what was loaded, up to a size; what was asked for least recently goes first. However many ask for the same
    thing at a time, it is loaded once.

    Attributes:
        size_bytes: the size of all that is kept.

    Args:
        limit_bytes: the size.
        size_of: the size of one thing, in bytes.
        kept_seconds: how long a thing is kept.
        now: seconds since 1970.
        is_for_places: whether whoever asks holds a place for it, and so stays until it was loaded (see `completed`).
    """

    def __init__(
        self,
        *,
        limit_bytes: int,
        size_of: Callable[[V], int],
        kept_seconds: float = math.inf,
        now: Now = time.time,
        is_for_places: bool = False,
    ) -> None:
        self._is_for_places = is_for_places
        self._limit_bytes = limit_bytes
        self._size_of = size_of
        self._kept_seconds = kept_seconds
        self._now = now
        self._kept: OrderedDict[K, tuple[V, float]] = OrderedDict()
        self._loading: dict[K, asyncio.Task[V | None]] = {}
        self.size_bytes = 0

    async def get(self, key: K, *, load: Callable[[], Awaitable[V | None]]) -> V | None:
        """Returns what is kept under a key, or loads it. Errors of `load` are raised; None is not kept."""
        if (found := self.find(key)) is not None:
            return found
        if key in self._kept:
            self._remove(key)
        # Whoever goes away takes nothing from those who wait for the same.
        loading = self._loading.get(key) or self._begin(key, load)
        return await (completed(loading) if self._is_for_places else asyncio.shield(loading))

    def find(self, key: K) -> V | None:
        """Returns what is kept under a key and need not be loaded; None if nothing is."""
        if not self.is_fresh(key):
            return None
        self._kept.move_to_end(key)
        return self._kept[key][0]

    def keep(self, key: K, value: V) -> None:
        """Keeps something that need not be loaded, under a key under which nothing is kept."""
        self._keep(key, value, self._now())

    def is_fresh(self, key: K) -> bool:
        """Returns whether something is kept under a key that need not be loaded."""
        _, loaded_seconds = self._kept.get(key, (None, math.inf))
        # A clock that was set back makes nothing younger.
        return 0 <= self._now() - loaded_seconds < self._kept_seconds

    def holds(self, key: K) -> bool:
        """Returns whether something is kept under a key, fresh or not."""
        return key in self._kept

    def forget(self, is_stale: Callable[[V], bool]) -> None:
        """Forgets what is stale, and keeps nothing of what is being loaded at this moment."""
        for key in [key for key, (value, _) in self._kept.items() if is_stale(value)]:
            self._remove(key)
        self._loading.clear()

    def drop(self, key: K) -> None:
        """Forgets what is kept under a key, and keeps nothing of it that is being loaded at this moment."""
        self._loading.pop(key, None)
        if key in self._kept:
            self._remove(key)

    def renew(self, is_meant: Callable[[K], bool]) -> None:
        """Keeps later callers from sharing loads that began before."""
        for key in [key for key in self._loading if is_meant(key)]:
            del self._loading[key]

    def _begin(self, key: K, load: Callable[[], Awaitable[V | None]]) -> asyncio.Task[V | None]:
        async def run() -> V | None:
            return await load()

        task = self._loading[key] = asyncio.create_task(run(), name=f"load of {key}")
        # What is known of it is as old as the moment at which it was asked for.
        task.add_done_callback(partial(self._end, key, self._now()))
        return task

    def _end(self, key: K, begun_seconds: float, task: asyncio.Task[V | None]) -> None:
        # Those who wait may all be gone; asyncio must not complain that nobody looked at the error.
        failed = task.cancelled() or task.exception() is not None
        if self._loading.get(key) is not task:
            return
        del self._loading[key]
        if not failed and (value := task.result()) is not None:
            self._keep(key, value, begun_seconds)

    def _keep(self, key: K, value: V, begun_seconds: float) -> None:
        if self._size_of(value) > self._limit_bytes:
            # All others would have to go for nothing.
            return
        self._kept[key] = value, begun_seconds
        self.size_bytes += self._size_of(value)
        while self.size_bytes > self._limit_bytes:
            self._remove(next(iter(self._kept)))

    def _remove(self, key: K) -> None:
        value, _ = self._kept.pop(key)
        self.size_bytes -= self._size_of(value)


def cache_of_one(*, kept_seconds: float, now: Now) -> Cache[None, V]:
    """A cache of a single thing, however large.

    Args:
        kept_seconds: how long it is kept.
        now: seconds since some moment.
    """
    return Cache(limit_bytes=1, size_of=lambda _: 1, kept_seconds=kept_seconds, now=now)
