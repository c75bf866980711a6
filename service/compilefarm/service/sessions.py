"""Sessions: how gateways that use the same store know of each other which ones live.

A session is an object in the store that its gateway renews every RENEWAL_SECONDS. Clocks of hosts are never compared:
whoever looks remembers when it first saw the object as it is, by its own clock, and takes the gateway for gone when
that has not changed for EXPIRY_SECONDS. So clocks may differ by any time; they only have to run about equally fast.
"""

from __future__ import annotations

import logging
import math
import os
import re
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from compilefarm.core.errors import StoreUnavailable
from compilefarm.service.clock import Clock, pause
from compilefarm.store.backend import Backend, StoredObject
from compilefarm.store.cache import Cache, cache_of_one
from compilefarm.store.layout import KEY_LEASES, SESSIONS, session_path

log = logging.getLogger(__name__)

RENEWAL_SECONDS = 5.0
EXPIRY_SECONDS = 20.0
# How old what is known of others may be.
LOOK_SECONDS = 1.0


class Session:
    """The session of this gateway. It begins when it is first needed.

    Attributes:
        name: says to people which gateway it is.

    Args:
        backend: where sessions lie.
        clock: time.
    """

    def __init__(self, backend: Backend, *, clock: Clock) -> None:
        host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())
        self.name = f"{host}-{os.getpid()}-{secrets.token_hex(4)}"
        self._backend = backend
        self._clock = clock
        self._renewed_seconds = -math.inf

    async def require(self) -> None:
        """Passes when others can see that this gateway lives.

        Raises:
            StoreUnavailable: the store cannot be written.
        """
        if self._clock.monotonic() - self._renewed_seconds >= 2 * RENEWAL_SECONDS:
            await self._renew()

    async def run(self) -> None:
        """Renews the session for ever, once it has begun."""
        while True:
            await pause(RENEWAL_SECONDS, clock=self._clock)
            if self._renewed_seconds > -math.inf:
                await self._try_to_renew()

    async def end(self) -> None:
        """Ends the session: what this gateway had begun is over for the others at once."""
        if self._renewed_seconds > -math.inf:
            try:
                await self._backend.delete(session_path(self.name))
            except StoreUnavailable as error:
                log.warning("other gateways will wait %.0f s for this one: %s", EXPIRY_SECONDS, error)

    async def _renew(self) -> None:
        begun_seconds = self._clock.monotonic()
        await self._backend.touch(session_path(self.name))
        self._renewed_seconds = begun_seconds

    async def _try_to_renew(self) -> None:
        try:
            await self._renew()
        except StoreUnavailable as error:
            log.warning("other gateways may take this one for gone, and compile what it compiles: %s", error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What the store says of gateways at one moment.

    Attributes:
        leases: the objects below KEY_LEASES, by path.
        alive: the sessions of gateways that live.
    """

    leases: Mapping[str, StoredObject]
    alive: frozenset[str]


class Peers:
    """The gateways that use the same store, this one included.

    Args:
        backend: where they say that they live.
        clock: time.
    """

    def __init__(self, backend: Backend, *, clock: Clock) -> None:
        self._backend = backend
        self._clock = clock
        # As each session was seen last, and since when it is like that.
        self._seen: dict[str, tuple[float, float]] = {}
        # However many jobs wait for other gateways, the store is listed once.
        self._sights: Cache[None, Sight] = cache_of_one(kept_seconds=LOOK_SECONDS, now=clock.monotonic)

    async def look(self, *, fresh: bool = False) -> Sight:
        """Returns what the store says, now or at most LOOK_SECONDS ago.

        Args:
            fresh: whether it has to be now.

        Raises:
            StoreUnavailable: it cannot be read.
        """
        if fresh:
            self._sights.forget(lambda _: True)
        sight = await self._sights.get(None, load=self._load)
        assert sight is not None
        return sight

    async def _load(self) -> Sight:
        # In this order: a gateway begins its session before its first lease.
        leases = {stored.path: stored async for stored in self._backend.objects(KEY_LEASES)}
        sessions = [stored async for stored in self._backend.objects(SESSIONS)]
        now_seconds = self._clock.monotonic()
        self._seen = {stored.path: self._as_seen(stored, now_seconds=now_seconds) for stored in sessions}
        alive = (path for path, (_, since) in self._seen.items() if now_seconds - since < EXPIRY_SECONDS)
        return Sight(leases=leases, alive=frozenset(path.rpartition("/")[2] for path in alive))

    def _as_seen(self, stored: StoredObject, *, now_seconds: float) -> tuple[float, float]:
        seen = self._seen.get(stored.path)
        is_same = seen is not None and seen[0] == stored.modified_seconds
        return seen if seen is not None and is_same else (stored.modified_seconds, now_seconds)
