"""Limits connections at the port of this process, as the kernel lists them (Linux only).

gRPC reports calls, but no connection without calls. Where an address, or all together, have too many connections,
those without calls are closed, and so is a connection whose calls are dropped or refused by the hundreds: gRPC bounds
how many calls a connection has at a time, not how many it begins. So is one that does not take what it is sent, which
gRPC keeps in memory for as long as the connection lasts, and at once one whose calls have metadata without an end.
Well-meaning clients connect again.
"""

from __future__ import annotations

import logging
import os
import resource
import socket
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Set
from contextlib import contextmanager, suppress
from pathlib import Path

from compilefarm.service.accounts import End, account_of_address, account_of_peer, find_end, read_address
from compilefarm.service.call_limits import CallLimits
from compilefarm.service.clock import Clock, limited
from compilefarm.service.rarely import Rarely

log = logging.getLogger(__name__)

LOOK_SECONDS = 2.5
# Within that time. A pod with an old token is refused once for each of its graphs.
MOST_WASTED_CALLS = 1000
_WASTEFUL = "begins calls and drops them, or is refused"
_OPEN_FILES = Path("/proc/self/fd")
# Of the files that this process may open, for connections: what is left of them after a look, and how many there may be
# in between.
_SHARE = 1 / 2
_LARGEST_SHARE = 3 / 4
# Files that are kept open so that there is room to look when all others are taken.
_RESERVED = 8
_INTERNET = (socket.AF_INET, socket.AF_INET6)


class Connections:
    """Closes connections that are too many, waste calls, or take nothing.

    Args:
        port: at which they come in.
        most: of one address.
        call_limits: know who has calls.
        clock: time.
    """

    def __init__(self, *, port: int, most: int, call_limits: CallLimits, clock: Clock) -> None:
        self._port = port
        self._most_of_all = _files_for(_SHARE)
        self._most = min(most, self._most_of_all)
        self._call_limits = call_limits
        self._clock = clock
        self._reserve: list[int] = []
        self._told = Rarely(clock.monotonic)

    async def watch(self) -> None:
        """Looks again and again."""
        with self._reserving():
            while True:
                with suppress(TimeoutError):
                    async with limited(LOOK_SECONDS, clock=self._clock):
                        await self._call_limits.wait_until_urgent()
                try:
                    self.look()
                except OSError as error:
                    log.error("connections cannot be looked at now: %s", error)

    def look(self) -> None:
        """Ends what has to be ended.

        Raises:
            OSError: no file can be opened to look.
        """
        self._give_up_reserve()
        try:
            self._look()
        finally:
            with suppress(OSError):
                self._reserve_files()

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

    def _look(self) -> None:
        wasted = self._call_limits.take_wasted()
        ended = dict.fromkeys((peer for peer, calls in wasted.items() if calls > MOST_WASTED_CALLS), _WASTEFUL)
        ended |= self._call_limits.take_ended()
        if not _OPEN_FILES.exists() or (not ended and len(os.listdir(_OPEN_FILES)) <= self._most):
            return
        for peer, reason in ended.items():
            if self._told.is_due(account_of_peer(peer)):
                log.warning("the connection of %s is ended: it %s", account_of_peer(peer), reason)
        self._end(_ends(ended) | self._find_too_many())

    def _find_too_many(self) -> set[End]:
        with_calls = _ends(self._call_limits.peers())
        by_account: defaultdict[str, list[End]] = defaultdict(list)
        for _, end in self._open():
            by_account[account_of_address(end.address)].append(end)
        too_many: set[End] = set()
        most = _equal_share(list(map(len, by_account.values())), most=self._most, most_of_all=self._most_of_all)
        for account, ends in by_account.items():
            idle = [end for end in ends if end not in with_calls][: max(len(ends) - most, 0)]
            if idle:
                log.warning("%d of the %d connections of %s are ended: at most %d", len(idle), len(ends), account, most)
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


def most_connections() -> int:
    """Returns how many connections fit into the files that this process may open."""
    return _files_for(_LARGEST_SHARE)


def _files_for(share: float) -> int:
    open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return int(share * open_files)


def _equal_share(counts: Collection[int], *, most: int, most_of_all: int) -> int:
    """How many connections an address may have so that all together have no more than they may: those that have few
    keep them.
    """
    left = most_of_all
    for others, count in zip(range(len(counts), 0, -1), sorted(counts), strict=True):
        if count * others > left:
            return min(most, left // others)
        left -= count
    return most


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
