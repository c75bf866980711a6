"""A minimum rate for the remote end of a stream, so that slow clients do not hold resources."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from compilefarm.core.errors import TooSlow
from compilefarm.service.clock import Clock, limited

T = TypeVar("T")

# One that is silent for that long is given up, and one that brings or takes less than so many bytes in a second, all
# waits of the stream together. 256 KiB is a fifth of what a line of 10 Mbit/s carries.
IDLE_SECONDS = 60.0
FLOOR_BYTES_PER_SECOND = 256 * 1024


class Pace:
    """Measures the waits for the remote end of one stream.

    Args:
        clock: time.
    """

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._waited_seconds = 0.0
        self._size_bytes = 0

    async def wait(self, event: Awaitable[T]) -> T:
        """Waits until the other end has brought or taken something.

        Raises:
            TooSlow: it takes too long.
        """
        started_seconds = self._clock.monotonic()
        try:
            async with limited(self._left_seconds(), clock=self._clock):
                return await event
        except TimeoutError:
            raise TooSlow(
                f"the other end moved {self._size_bytes} bytes and was waited for {IDLE_SECONDS:.0f} s beyond what "
                f"{FLOOR_BYTES_PER_SECOND // 1024} KiB in a second take: try again over a better line"
            ) from None
        finally:
            self._waited_seconds += self._clock.monotonic() - started_seconds

    def note(self, size_bytes: int) -> None:
        """Notes what was moved."""
        self._size_bytes += size_bytes

    def _left_seconds(self) -> float:
        return max(IDLE_SECONDS + self._size_bytes / FLOOR_BYTES_PER_SECOND - self._waited_seconds, 0.0)
