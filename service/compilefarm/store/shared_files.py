"""Files that several callers read at a time: each is fetched and checked once for concurrent readers.

A reader that goes away stops nobody else's read, and one that comes and goes again and again causes no new one: a fetch
that has begun is completed, and later readers share it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from compilefarm.store.files import InFile
from compilefarm.store.uses import Now

# What was checked longer ago is checked again for whoever comes: damage shows.
FRESH_SECONDS = 10.0

Open = Callable[[str], Awaitable[InFile]]


class _Shared:
    """A file that is being opened, or read.

    Attributes:
        opening: gives it.
        begun_seconds: when that began.
        readers: how many read it, or wait for it.
    """

    def __init__(self, opening: asyncio.Task[InFile], *, begun_seconds: float) -> None:
        self.opening = opening
        self.begun_seconds = begun_seconds
        self.readers = 0

    def close_if_unused(self) -> None:
        """Closes the file if nobody reads it, or waits for it."""
        if self.readers or not self.opening.done():
            return
        # To ask for the error is to have looked at it: those who waited may all be gone.
        if not self.opening.cancelled() and self.opening.exception() is None:
            self.opening.result().close()


class SharedFiles:
    """Files by name.

    Args:
        open: opens one, and checks it.
        now: seconds since 1970.
    """

    def __init__(self, open: Open, *, now: Now) -> None:
        self._open = open
        self._now = now
        self._files: dict[str, _Shared] = {}

    @asynccontextmanager
    async def reading(self, name: str) -> AsyncIterator[InFile]:
        """Opens a file for as long as the context lasts. Errors of opening are raised."""
        shared = self._find(name) or self._begin(name)
        shared.readers += 1
        try:
            yield await asyncio.shield(shared.opening)
        finally:
            shared.readers -= 1
            self._leave(name, shared)

    def _find(self, name: str) -> _Shared | None:
        shared = self._files.get(name)
        if shared is None or not shared.opening.done():
            return shared
        is_fresh = shared.readers > 0 and 0 <= self._now() - shared.begun_seconds < FRESH_SECONDS
        return shared if is_fresh else None

    def _begin(self, name: str) -> _Shared:
        async def run() -> InFile:
            return await self._open(name)

        opening = asyncio.create_task(run(), name=f"opening of {name}")
        shared = self._files[name] = _Shared(opening, begun_seconds=self._now())
        opening.add_done_callback(lambda _: self._leave(name, shared))
        return shared

    def _leave(self, name: str, shared: _Shared) -> None:
        shared.close_if_unused()
        if not shared.readers and shared.opening.done() and self._files.get(name) is shared:
            del self._files[name]
