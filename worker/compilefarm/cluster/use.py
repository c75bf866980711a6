"""Whether a worker is used: one that is not goes, so that its node can."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any


class Use:
    """The use of a worker, which is over when nobody has wanted it for so long.

    Args:
        idle_seconds: how long; None: it is always wanted.
    """

    def __init__(self, idle_seconds: float | None) -> None:
        self._idle_seconds = idle_seconds
        self._jobs = 0
        self._wanted = asyncio.Event()
        self._over = asyncio.Event()
        self._free = asyncio.Event()
        self._free.set()
        self._end: asyncio.TimerHandle | None = None
        if idle_seconds is None:
            self._wanted.set()

    @property
    def is_wanted(self) -> bool:
        """Whether the worker is wanted, or was until not long ago."""
        return self._wanted.is_set()

    def note(self) -> None:
        """Notes that a job waits for the worker, or has had it until now."""
        self._wanted.set()
        self._postpone()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lasts while the worker has a job."""
        self._jobs += 1
        self._free.clear()
        self._postpone()
        try:
            yield
        finally:
            self._jobs -= 1
            if not self._jobs:
                self._free.set()
            self.note()

    async def begun(self) -> None:
        """Returns when the worker is wanted."""
        await self._wanted.wait()
        self._over.clear()

    async def over(self) -> None:
        """Returns when nobody has wanted the worker for long enough."""
        await self._over.wait()

    async def free(self) -> None:
        """Returns when the worker has no job."""
        await self._free.wait()

    def _postpone(self) -> None:
        if self._end is not None:
            self._end.cancel()
        if self._idle_seconds is not None and not self._jobs:
            self._end = asyncio.get_running_loop().call_later(self._idle_seconds, self._finish)

    def _finish(self) -> None:
        self._wanted.clear()
        self._over.set()


async def until_first(main: Coroutine[Any, Any, None], other: Coroutine[Any, Any, None]) -> bool:
    """Runs two at a time until one has ended, and cancels the other. Returns whether that was `other`.

    Raises:
        What `main` raises.
    """
    tasks = (asyncio.ensure_future(main), asyncio.ensure_future(other))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if tasks[0].done():
            tasks[0].result()
            return False
        return True
    finally:
        for task in tasks:
            task.cancel()
        await _end_of(tasks)


async def _end_of(tasks: Collection[asyncio.Task[None]]) -> None:
    """Returns when tasks have ended, also where the wait for that is cancelled: an actor is closed by one."""
    end = asyncio.ensure_future(asyncio.wait(tasks))
    try:
        await asyncio.shield(end)
    except asyncio.CancelledError:
        await end
        raise
