"""Farms whose callers do not trust each other, each with a connection of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

from compilefarm.core.digests import digest_of
from compilefarm.service.clock import Clock
from compilefarm.service.config import GatewayConfig
from compilefarm.service.testing import Calls, ScriptedPool, calling, serving
from compilefarm.service.testing.servers import FREE_PORT
from compilefarm.store.artifact_store import ArtifactStore

LOOPBACK = FREE_PORT


def listing(callers: Mapping[str, str]) -> str:
    """A list of callers, each with the role that is given and a namespace that is called like it."""
    entries = [
        f'[[callers]]\nname = "{name}"\nrole = "{role}"\nnamespace = "{name}"\n'
        f'tokens = ["sha256:{digest_of(name.encode())}"]\n'
        for name, role in callers.items()
    ]
    return f"namespaces = {list(callers)}\n{''.join(entries)}"


def asking(folder: Path, callers: Mapping[str, str], *, config: GatewayConfig = LOOPBACK) -> GatewayConfig:
    """A configuration that asks who calls.

    Args:
        folder: for the list of callers.
        callers: their roles by name, the most trusted first.
        config: what is set beside.
    """
    (folder / "callers.toml").write_text(listing(callers))
    return replace(config, auth_file=str(folder / "callers.toml"))


@asynccontextmanager
async def farm(
    folder: Path,
    callers: Mapping[str, str],
    *,
    pool: ScriptedPool | None = None,
    store: ArtifactStore | None = None,
    config: GatewayConfig = LOOPBACK,
    clock: Clock | None = None,
) -> AsyncIterator[Mapping[str, Calls]]:
    """The callers of a farm, by name. A farm with one caller without a name asks nobody who they are.

    Args:
        folder: for the list of callers.
        callers: their roles by name, the most trusted first.
        pool, store, config, clock: see `serving`.
    """
    asks = set(callers) != {""}
    if asks:
        config = asking(folder, callers, config=config)
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(serving(pool=pool, store=store, config=config, clock=clock))
        yield {
            name: await stack.enter_async_context(calling(gateway.address, token=name if asks else ""))
            for name in callers
        }
