"""Limits connections at the port of this process.

Where an address, or all together, have too many connections, those without calls are closed, and so is a connection
whose calls are dropped or refused by the hundreds. So is one that does not take what it is sent, and at once one whose
calls have metadata without an end. Well-meaning clients connect again.
"""

from __future__ import annotations

import logging
import os
import resource
import socket
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Set
from contextlib import suppress

from compilefarm.service.accounts import End, account_of_address, account_of_peer, find_end, read_address
from compilefarm.service.call_limits import CallLimits
from compilefarm.service.clock import Clock
from compilefarm.service.connection_watch import (
    OPEN_FILES,
    ConnectionWatch,
    KnownConnections,
    open_sockets,
    shut_down,
)
from compilefarm.service.rarely import Rarely

log = logging.getLogger(__name__)

# Of the files that this process may open, for connections: what is left of them after a look, and how many there may be
# in between.
_SHARE = 1 / 2
_LARGEST_SHARE = 3 / 4
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
        self._told = Rarely(clock.monotonic)

    async def watch(self) -> None:
        """Looks again and again."""
        await ConnectionWatch(self._look, call_limits=self._call_limits, clock=self._clock).run()

    def _look(self, known: KnownConnections) -> None:
        if not OPEN_FILES.exists() or (not known.to_end and len(os.listdir(OPEN_FILES)) <= self._most):
            return
        for peer, reason in known.to_end.items():
            if self._told.is_due(account_of_peer(peer)):
                log.warning("the connection of %s is ended: it %s", account_of_peer(peer), reason)
        numbers = {end: number for number, _, end in self._open()}
        ended = _ends(known.to_end) | self._find_too_many(numbers, with_calls=_ends(known.with_calls))
        for _, connection, end in self._open([numbers[end] for end in ended if end in numbers]):
            # Another connection may have got the number meanwhile.
            if end in ended:
                shut_down(connection)

    def _find_too_many(self, ends: Iterable[End], *, with_calls: Set[End]) -> set[End]:
        by_account: defaultdict[str, list[End]] = defaultdict(list)
        for end in ends:
            by_account[account_of_address(end.address)].append(end)
        too_many: set[End] = set()
        most = _equal_share(list(map(len, by_account.values())), most=self._most, most_of_all=self._most_of_all)
        accounts = []
        for account, own in by_account.items():
            idle = [end for end in own if end not in with_calls][: max(len(own) - most, 0)]
            if idle:
                accounts.append(account)
            too_many.update(idle)
        if accounts:
            log.warning(
                "%d connections without calls are ended, of %s and %d others: each may have %d at this moment",
                *(len(too_many), accounts[0], len(accounts) - 1, most),
            )
        return too_many

    def _open(self, numbers: Iterable[int] | None = None) -> Iterator[tuple[int, socket.socket, End]]:
        for number, connection in open_sockets(numbers):
            # Nobody is at its other end any more.
            with suppress(OSError):
                if connection.family in _INTERNET and connection.getsockname()[1] == self._port:
                    host, port, *_ = connection.getpeername()
                    yield number, connection, End(address=read_address(host), port=port)


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


def _ends(peers: Iterable[str]) -> set[End]:
    return {end for peer in peers if (end := find_end(peer)) is not None}
