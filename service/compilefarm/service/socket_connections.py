"""Limits connections at a UNIX socket of this process."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from compilefarm.service.call_limits import CallLimits
from compilefarm.service.clock import Clock
from compilefarm.service.connection_watch import ConnectionWatch, KnownConnections, open_sockets, shut_down
from compilefarm.service.rarely import Rarely

log = logging.getLogger(__name__)

# A gateway has one.
MOST_CONNECTIONS_OF_SOCKET = 16


class SocketConnections:
    """Ends the connections at a socket when they are too many, or when calls of one come to nothing or have metadata
    without an end. All of them: nothing tells one from another there. A gateway connects again.

    Args:
        path: the socket.
        call_limits: know what calls come to.
        clock: time.
    """

    def __init__(self, path: Path, *, call_limits: CallLimits, clock: Clock) -> None:
        self._path = path
        self._call_limits = call_limits
        self._clock = clock
        self._told = Rarely(clock.monotonic)

    async def watch(self) -> None:
        """Looks again and again."""
        await ConnectionWatch(self._look, call_limits=self._call_limits, clock=self._clock).run()

    def _look(self, known: KnownConnections) -> None:
        reasons = [f"one of them {reason}" for reason in known.to_end.values()]
        if (count := sum(1 for _ in self._open())) > MOST_CONNECTIONS_OF_SOCKET:
            reasons.append(f"they are {count}, of at most {MOST_CONNECTIONS_OF_SOCKET}")
        if not reasons:
            return
        if self._told.is_due(""):
            log.warning("the connections at %s are ended: %s", self._path, "; ".join(reasons))
        for connection in self._open():
            shut_down(connection)

    def _open(self) -> Iterator[socket.socket]:
        for _, connection in open_sockets():
            # Nobody is at its other end any more.
            with suppress(OSError):
                if connection.family == socket.AF_UNIX and connection.getsockname() == os.fspath(self._path):
                    # Of the socket that listens there is no other end.
                    connection.getpeername()
                    yield connection
