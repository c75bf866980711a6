"""The connections at the port of this process, as the kernel tells of them (Linux alone).

gRPC tells of calls, and of no connection that makes none. Too many of one address are ended, of those without calls,
and so is one whose calls are dropped or refused by the hundreds: gRPC bounds how many calls a connection has at a
time, not how many it begins. Who was meant well connects again.
"""

from __future__ import annotations

import logging
import os
import resource
import socket
from collections import defaultdict
from collections.abc import Iterable, Iterator, Set
from contextlib import suppress
from pathlib import Path

from compilefarm.service.accounts import End, account_of_address, find_end, read_address
from compilefarm.service.call_limits import CallLimits
from compilefarm.service.clock import Clock, pause

log = logging.getLogger(__name__)

LOOK_SECONDS = 2.5
# Within that time. A pod with an old token is refused once for each of its graphs.
MOST_WASTED_CALLS = 1000
_OPEN_FILES = Path("/proc/self/fd")
# Of the files that this process may open, for connections of one address.
_SHARE = 1 / 2
_INTERNET = (socket.AF_INET, socket.AF_INET6)


class Connections:
    """Ends connections that are too many, or waste calls.

    Args:
        port: at which they come in.
        most: of one address.
        call_limits: know who has calls.
        clock: time.
    """

    def __init__(self, *, port: int, most: int, call_limits: CallLimits, clock: Clock) -> None:
        self._port = port
        open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = min(most, int(_SHARE * open_files))
        self._call_limits = call_limits
        self._clock = clock

    async def watch(self) -> None:
        """Looks again and again."""
        while True:
            await pause(LOOK_SECONDS, clock=self._clock)
            self.look()

    def look(self) -> None:
        """Ends what has to be ended."""
        wasted = self._call_limits.take_wasted()
        wasteful = _ends(peer for peer, calls in wasted.items() if calls > MOST_WASTED_CALLS)
        if not _OPEN_FILES.exists() or (not wasteful and len(os.listdir(_OPEN_FILES)) <= self._most):
            return
        for end in wasteful:
            log.warning("the connection of %s is ended: it begins calls and drops them, or is refused", end.address)
        self._end(wasteful | self._find_too_many())

    def _find_too_many(self) -> set[End]:
        with_calls = _ends(self._call_limits.peers())
        by_account: defaultdict[str, list[End]] = defaultdict(list)
        for _, end in self._open():
            by_account[account_of_address(end.address)].append(end)
        too_many: set[End] = set()
        for account, ends in by_account.items():
            idle = [end for end in ends if end not in with_calls][: max(len(ends) - self._most, 0)]
            if idle:
                log.warning(
                    "%d of the %d connections of %s are ended: at most %d", len(idle), len(ends), account, self._most
                )
            too_many.update(idle)
        return too_many

    def _end(self, ends: Set[End]) -> None:
        for connection, end in self._open():
            if end in ends:
                # gRPC hears of it as of a caller that went.
                connection.shutdown(socket.SHUT_RDWR)

    def _open(self) -> Iterator[tuple[socket.socket, End]]:
        for name in os.listdir(_OPEN_FILES):
            # It is gone by now, or nobody is at its other end.
            with suppress(OSError):
                if not os.readlink(_OPEN_FILES / name).startswith("socket:"):
                    continue
                with _duplicate(int(name)) as connection:
                    if connection.family in _INTERNET and connection.getsockname()[1] == self._port:
                        host, port, *_ = connection.getpeername()
                        yield connection, End(address=read_address(host), port=port)


def _duplicate(number: int) -> socket.socket:
    # A number of its own: the one that is listed may stand for another file at any moment.
    duplicate = os.dup(number)
    try:
        return socket.socket(fileno=duplicate)
    except OSError:
        os.close(duplicate)
        raise


def _ends(peers: Iterable[str]) -> set[End]:
    return {end for peer in peers if (end := find_end(peer)) is not None}
