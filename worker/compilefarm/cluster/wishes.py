"""What an actor wants of its gateway, which comes and asks: an actor cannot call a gateway, nor reach the store."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from ray.exceptions import RayError

from compilefarm.core.pool import Toolchains
from compilefarm.v1.gateways_pb2 import ToolchainRecord

log = logging.getLogger(__name__)

# So often an answer comes although there is nothing to wish for.
_WISH_SECONDS = 20.0
# A worker does not wait longer for a gateway that may be gone.
_GRANT_SECONDS = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What an actor wants: to be told what is known of a C++ compiler, or to have that kept.

    Attributes:
        machine: of which the worker asks; empty: it asks for nothing.
        record: what is to be kept.
    """

    machine: str = ""
    record: ToolchainRecord | None = None


@dataclass(slots=True)
class GatewayToolchains:
    """What the gateway knows of C++ compilers, for a worker in an actor. Satisfies compilefarm.core.pool.Toolchains."""

    _wishes: asyncio.Queue[Wish] = field(default_factory=asyncio.Queue)
    _granted: dict[str, asyncio.Future[ToolchainRecord | None]] = field(default_factory=dict)

    async def find(self, machine: str) -> ToolchainRecord | None:
        """See Toolchains.find."""
        granted = self._granted[machine] = asyncio.get_running_loop().create_future()
        self._wishes.put_nowait(Wish(machine=machine))
        try:
            return await asyncio.wait_for(granted, timeout=_GRANT_SECONDS)
        except TimeoutError:
            log.warning("the gateway does not say what it knows of the C++ compiler, which is tried here")
            return None
        finally:
            del self._granted[machine]

    async def keep(self, record: ToolchainRecord) -> None:
        """See Toolchains.keep."""
        self._wishes.put_nowait(Wish(record=record))

    async def wish(self) -> Wish | None:
        """The next wish; None if there is none for a while."""
        try:
            return await asyncio.wait_for(self._wishes.get(), timeout=_WISH_SECONDS)
        except TimeoutError:
            return None

    def grant(self, machine: str, record: ToolchainRecord | None) -> None:
        """Answers the wish to be told of a machine."""
        granted = self._granted.get(machine)
        if granted is not None and not granted.done():
            granted.set_result(record)


@asynccontextmanager
async def granting_wishes(actor: Any, toolchains: Toolchains) -> AsyncIterator[None]:
    """Does what an actor wishes for while the context lasts."""
    granting = asyncio.create_task(_grant(actor, toolchains))
    try:
        yield
    finally:
        granting.cancel()
        await asyncio.wait({granting})


async def _grant(actor: Any, toolchains: Toolchains) -> None:
    # Whoever follows an actor finds out that it is lost.
    with contextlib.suppress(RayError):
        while True:
            wish: Wish | None = await actor.wish.remote()
            if wish is None:
                continue
            if wish.record is not None:
                await toolchains.keep(wish.record)
            else:
                await actor.grant.remote(wish.machine, await toolchains.find(wish.machine))
