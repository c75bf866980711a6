"""Looks at the connections of this process again and again, as the kernel lists them (Linux only).

gRPC reports calls, but no connection without calls, and bounds how many calls a connection has at a time, not how many
it begins. What it is sent stays in its memory for as long as the connection lasts.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from compilefarm.service.call_limits import CallLimits
from compilefarm.service.clock import Clock, limited

log = logging.getLogger(__name__)

LOOK_SECONDS = 2.5
# Within that time. A pod with an old token is refused once for each of its graphs.
MOST_WASTED_CALLS = 1000
_WASTEFUL = "begins calls and drops them, or is refused"
OPEN_FILES = Path("/proc/self/fd")
# Files that are kept open so that there is room to look when all others are taken.
_RESERVED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownConnections:
    """What calls tell of connections, as gRPC names these.

    Attributes:
        to_end: those that have to be ended, and why.
        with_calls: those that have calls.
    """

    to_end: Mapping[str, str]
    with_calls: Set[str]


class ConnectionWatch:
    """Has connections looked at every few seconds, and at once when one has to be ended at once.

    A look takes some system calls for each connection, after each of which a thread waits for its turn: with 12,000 of
    them eight seconds. So it is a thread's of its own, for which nobody else has to wait.

    Args:
        look: ends what has to be ended; it is told what calls tell, and looks for others itself, in that thread. Raises
            OSError when no file can be opened.
        call_limits: know which connections have to be ended.
        clock: time.
    """

    def __init__(self, look: Callable[[KnownConnections], None], *, call_limits: CallLimits, clock: Clock) -> None:
        self._look = look
        self._call_limits = call_limits
        self._clock = clock
        self._reserve: list[int] = []

    async def run(self) -> None:
        """Looks again and again."""
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="connections")
        try:
            with self._reserving():
                while True:
                    with suppress(TimeoutError):
                        async with limited(LOOK_SECONDS, clock=self._clock):
                            await self._call_limits.wait_until_urgent()
                    await self._look_once(thread)
        finally:
            thread.shutdown(wait=False, cancel_futures=True)

    async def _look_once(self, thread: ThreadPoolExecutor) -> None:
        known = KnownConnections(to_end=self._to_end(), with_calls=frozenset(self._call_limits.peers()))
        self._give_up_reserve()
        try:
            await asyncio.get_running_loop().run_in_executor(thread, self._look, known)
        except OSError as error:
            log.error("connections cannot be looked at now: %s", error)
        finally:
            with suppress(OSError):
                self._reserve_files()

    def _to_end(self) -> Mapping[str, str]:
        wasted = self._call_limits.take_wasted()
        wasteful = dict.fromkeys((peer for peer, calls in wasted.items() if calls > MOST_WASTED_CALLS), _WASTEFUL)
        return {**wasteful, **self._call_limits.take_ended()}

    @contextmanager
    def _reserving(self) -> Iterator[None]:
        self._reserve_files()
        try:
            yield
        finally:
            self._give_up_reserve()

    def _reserve_files(self) -> None:
        while len(self._reserve) < _RESERVED:
            self._reserve.append(os.open(os.devnull, os.O_RDONLY))

    def _give_up_reserve(self) -> None:
        while self._reserve:
            os.close(self._reserve.pop())


def open_sockets(numbers: Iterable[int] | None = None) -> Iterator[tuple[int, socket.socket]]:
    """Yields the sockets of this process by the numbers of their files, each as a duplicate that is closed when the
    next one is asked for.

    Args:
        numbers: of files that are looked at; None: all that are open.
    """
    for number in map(int, os.listdir(OPEN_FILES)) if numbers is None else numbers:
        # It is gone by now, or nobody is at its other end.
        with suppress(OSError):
            if os.readlink(OPEN_FILES / str(number)).startswith("socket:"):
                with _duplicate(number) as connection:
                    yield number, connection


def shut_down(connection: socket.socket) -> None:
    """Ends a connection: gRPC hears of it as of a caller that went."""
    # It may have gone by itself.
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _duplicate(number: int) -> socket.socket:
    # A number of its own: the one that is listed may stand for another file at any moment.
    duplicate = os.dup(number)
    try:
        return socket.socket(fileno=duplicate)
    except OSError:
        os.close(duplicate)
        raise
