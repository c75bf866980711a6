"""Time as the gateway sees it, so that tests can move it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from functools import partial
from types import TracebackType
from typing import Any, Protocol


class Timer(Protocol):
    """A scheduled call."""

    def cancel(self) -> None:
        """Calls it off; nothing happens if it has been made."""


class Clock(Protocol):
    """The source of time and timers of the gateway."""

    def monotonic(self) -> float:
        """Seconds since some moment; never runs backwards."""

    def now(self) -> datetime:
        """The date and time in UTC."""

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Calls `callback` on the running event loop in that many seconds."""


class SystemClock:
    """The clock of the machine."""

    def monotonic(self) -> float:
        return time.monotonic()

    def now(self) -> datetime:
        return datetime.now(UTC)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_later(seconds, callback)


async def wait_at_most(seconds: float, futures: Collection[asyncio.Future[Any]], *, clock: Clock) -> None:
    """Waits until all of `futures` are done, but no longer than that by `clock`."""
    expired: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    timer = clock.call_later(seconds, partial(_end, expired))
    try:
        while not expired.done() and (pending := [future for future in futures if not future.done()]):
            await asyncio.wait([*pending, expired], return_when=asyncio.FIRST_COMPLETED)
    finally:
        timer.cancel()


async def pause(seconds: float, *, clock: Clock) -> None:
    """Waits for that long by `clock`."""
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    timer = clock.call_later(seconds, partial(_end, over))
    try:
        await over
    finally:
        timer.cancel()


def _end(waiting: asyncio.Future[None]) -> None:
    # Who waits may have been cancelled just now, and has had no time to stop the timer.
    if not waiting.done():
        waiting.set_result(None)


def limited(seconds: float, *, clock: Clock) -> AbstractAsyncContextManager[None]:
    """Ends what is done inside when it has taken that long by `clock`.

    Raises:
        TimeoutError: it has.
    """
    return _Limit(seconds, clock=clock)


class _Limit(AbstractAsyncContextManager[None]):
    """A limit of time, as a class: every call has several, and a generator takes twice as long."""

    __slots__ = ("_clock", "_scope", "_seconds", "_timer")

    def __init__(self, seconds: float, *, clock: Clock) -> None:
        self._clock = clock
        self._seconds = seconds
        self._scope = asyncio.timeout(None)

    async def __aenter__(self) -> None:
        await self._scope.__aenter__()
        self._timer = self._clock.call_later(self._seconds, self._end)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._timer.cancel()
        await self._scope.__aexit__(kind, error, traceback)

    def _end(self) -> None:
        # A moment that has passed on every event loop.
        self._scope.reschedule(0.0)
