"""Time as the gateway sees it, so that tests can move it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Protocol


class Timer(Protocol):
    """A call that lies in the future."""

    def cancel(self) -> None:
        """Calls it off; nothing happens if it has been made."""


class Clock(Protocol):
    """Where the gateway reads the time and sets its timers."""

    def monotonic(self) -> float:
        """Seconds since some moment; never runs backwards."""

    def now(self) -> datetime:
        """The date and time in UTC."""

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Has `callback` called on the running event loop in that many seconds."""


class SystemClock:
    """The clock of the machine."""

    def monotonic(self) -> float:
        return time.monotonic()

    def now(self) -> datetime:
        return datetime.now(UTC)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_later(seconds, callback)


async def wait_at_most(seconds: float, awaitable: Awaitable[object], *, clock: Clock) -> bool:
    """Waits until `awaitable` is done, but no longer than that by `clock`. Returns whether it is done.

    What is waited for is not cancelled when the time is up.
    """
    task = asyncio.ensure_future(awaitable)
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake() -> None:
        if not waiter.done():
            waiter.set_result(None)

    timer = clock.call_later(seconds, wake)
    task.add_done_callback(lambda _: wake())
    try:
        await waiter
    finally:
        timer.cancel()
    return task.done()
