"""Limits on the connections, calls and requests on their way of one address and of one caller."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from compilefarm.core.errors import Busy, NotAuthenticated
from compilefarm.service.accounts import account_of_peer
from compilefarm.service.allowances import Allowance
from compilefarm.service.fair_semaphore import FairSemaphore

_RETRY_SECONDS = 5.0
# Many pods may share an address, each with a connection or two for every process.
MOST_CONNECTIONS = 2048
MOST_CALLS = 8192
# Load balancers and orchestrators ask, and have one stream each.
MOST_HEALTH_CALLS = 64
# A request stays in memory until it is answered. That of a large model has less than a megabyte.
ACCOUNT_BYTES = 512 * 1024 * 1024
ALL_BYTES = 2 * 1024 * 1024 * 1024
# Of answers that are not taken yet. Some have a megabyte; those who read many at a time wait for places.
ANSWERED_BYTES_OF_ACCOUNT = 512 * 1024 * 1024
ANSWERED_BYTES = 2 * 1024 * 1024 * 1024
# One that is on its way may be in memory up to the largest size of a message, and comes in milliseconds.
RECEIVED_AT_ONCE = 256
RECEIVED_AT_ONCE_OF_ACCOUNT = 32
# Streams of requests, of each of which one request may be on its way.
STREAMS = 1024
STREAMS_OF_ACCOUNT = 64
# Of calls for health, which strangers make, too: they name a service, and take no places from others.
HEALTH_ACCOUNT_BYTES = 64 * 1024
HEALTH_ALL_BYTES = 16 * 1024 * 1024
HEALTH_RECEIVED_AT_ONCE = 128
HEALTH_RECEIVED_AT_ONCE_OF_ACCOUNT = 2


class CallLimits:
    """The calls of this moment, by the address that they come from, and the size of their requests.

    Attributes:
        requests: the bytes of requests that are not answered yet.
        receiving: places for requests that are on their way.
        answers: the bytes of answers on their way, of which those who asked have to take some each second.
        health_requests, health_receiving: the same for calls that ask for health.
        streaming: places for streams of requests.

    Args:
        connections: with calls, of one address.
        calls: of one address.
        health_calls: calls of one address that ask for health, which anybody may do.
    """

    def __init__(
        self,
        *,
        connections: int = MOST_CONNECTIONS,
        calls: int = MOST_CALLS,
        health_calls: int = MOST_HEALTH_CALLS,
    ) -> None:
        self._most = {"connections": connections, "calls": calls, "calls for health": health_calls}
        self._calls: Counter[tuple[str, bool]] = Counter()
        # Calls of each connection, by address and connection.
        self._connections: defaultdict[str, Counter[str]] = defaultdict(Counter)
        # Calls of each connection that were dropped by those who began them, or made by nobody who is known.
        self._wasted: Counter[str] = Counter()
        # Connections that are to be ended, and why.
        self._ended: dict[str, str] = {}
        self._is_urgent = asyncio.Event()
        self.requests = Allowance(account_bytes=ACCOUNT_BYTES, all_bytes=ALL_BYTES)
        self.receiving = FairSemaphore(
            "receiving requests",
            places=RECEIVED_AT_ONCE,
            account_places=RECEIVED_AT_ONCE_OF_ACCOUNT,
            account_waiting=calls,
        )
        self.answers = Allowance(account_bytes=ANSWERED_BYTES_OF_ACCOUNT, all_bytes=ANSWERED_BYTES)
        self.health_requests = Allowance(account_bytes=HEALTH_ACCOUNT_BYTES, all_bytes=HEALTH_ALL_BYTES)
        self.health_receiving = FairSemaphore(
            "receiving requests for health",
            places=HEALTH_RECEIVED_AT_ONCE,
            account_places=HEALTH_RECEIVED_AT_ONCE_OF_ACCOUNT,
        )
        self.streaming = FairSemaphore("receiving streams", places=STREAMS, account_places=STREAMS_OF_ACCOUNT)

    @contextmanager
    def counting(self, peer: str, *, is_health: bool) -> Iterator[None]:
        """Counts a call for as long as the context lasts.

        Args:
            peer: the connection, as gRPC names it.
            is_health: whether it asks for health.

        Raises:
            Busy: its address has too many.
        """
        address = account_of_peer(peer)
        self._check(address, peer=peer, is_health=is_health)
        self._calls[address, is_health] += 1
        self._connections[address][peer] += 1
        try:
            yield
        except (asyncio.CancelledError, NotAuthenticated):
            self.note_wasted(peer)
            raise
        finally:
            self._leave(address, peer=peer, is_health=is_health)

    def note_wasted(self, peer: str) -> None:
        """Counts a call that came to nothing.

        Args:
            peer: the connection, as gRPC names it.
        """
        self._wasted[peer] += 1

    def end_connection(self, peer: str, *, because: str, at_once: bool = False) -> None:
        """Has a connection ended.

        Args:
            peer: the connection, as gRPC names it.
            because: what it does, for the log.
            at_once: whether that cannot wait for the next look at connections.
        """
        self._ended[peer] = because
        if at_once:
            self._is_urgent.set()

    def peers(self) -> Iterator[str]:
        """The connections that have calls, as gRPC names them."""
        for connections in self._connections.values():
            yield from connections

    def take_wasted(self) -> Mapping[str, int]:
        """By connection, the calls since this was last asked that were dropped, or refused because nobody knows the
        caller.
        """
        wasted, self._wasted = self._wasted, Counter()
        return wasted

    def take_ended(self) -> Mapping[str, str]:
        """The connections that are to be ended since this was last asked, and why."""
        ended, self._ended = self._ended, {}
        self._is_urgent.clear()
        return ended

    async def wait_until_urgent(self) -> None:
        """Waits until a connection has to be ended at once."""
        await self._is_urgent.wait()

    def _check(self, address: str, *, peer: str, is_health: bool) -> None:
        connections: Mapping[str, int] = self._connections.get(address, {})
        counts = {
            "connections": len(connections) + (peer not in connections),
            "calls for health" if is_health else "calls": self._calls[address, is_health] + 1,
        }
        for what, count in counts.items():
            if count > self._most[what]:
                raise Busy(
                    f"{address} has {self._most[what]} {what} at this moment, and may have no more: end some, or ask "
                    "later",
                    retry_after_seconds=_RETRY_SECONDS,
                )

    def _leave(self, address: str, *, peer: str, is_health: bool) -> None:
        self._calls[address, is_health] -= 1
        if not self._calls[address, is_health]:
            del self._calls[address, is_health]
        connections = self._connections[address]
        connections[peer] -= 1
        if not connections[peer]:
            del connections[peer]
        if not connections:
            del self._connections[address]
