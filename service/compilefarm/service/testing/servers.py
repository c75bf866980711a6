"""Gateways on free ports."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from compilefarm.core.pool import DeclaredEnvironment, WorkerPool
from compilefarm.service.app import Gateway
from compilefarm.service.clock import Clock
from compilefarm.service.config import GatewayConfig
from compilefarm.service.testing.pool import ScriptedPool
from compilefarm.store.artifact_store import ArtifactStore
from compilefarm.store.entries import EntryStore
from compilefarm.store.opening import open_store
from compilefarm.store.signing_policy import UNSIGNED, SigningPolicy

# Tests send blobs that are larger than any tensor of a graph.
FREE_PORT = GatewayConfig(listen="127.0.0.1:0", max_blob_bytes=2**30)


@asynccontextmanager
async def serving(
    *,
    pool: WorkerPool | None = None,
    store: ArtifactStore | None = None,
    config: GatewayConfig | None = None,
    signing: SigningPolicy = UNSIGNED,
    clock: Clock | None = None,
    former_journal: Path | None = None,
    caches: EntryStore | None = None,
    declared: Sequence[DeclaredEnvironment] = (),
) -> AsyncIterator[Gateway]:
    """Runs a gateway on a free loopback port, on this event loop; by default with one worker that compiles at once and
    a store in memory.
    """
    gateway = Gateway(
        config or FREE_PORT,
        store=store or await open_store("memory:"),
        pool=pool or ScriptedPool(),
        signing=signing,
        clock=clock,
        former_journal=former_journal,
        caches=caches,
        declared=declared,
    )
    await gateway.start()
    try:
        yield gateway
    finally:
        await gateway.close(grace_seconds=0)


@contextmanager
def serving_in_thread(
    *,
    pool: WorkerPool | None = None,
    store: ArtifactStore | None = None,
    config: GatewayConfig | None = None,
    signing: SigningPolicy = UNSIGNED,
    caches: EntryStore | None = None,
    declared: Sequence[DeclaredEnvironment] = (),
) -> Iterator[str]:
    """Like `serving`, on an event loop in a thread of its own, for clients that block. Yields the address."""
    address: Future[str] = Future()
    stop: Future[None] = Future()

    async def serve() -> None:
        async with serving(
            pool=pool, store=store, config=config, signing=signing, caches=caches, declared=declared
        ) as gateway:
            address.set_result(gateway.address)
            await asyncio.wrap_future(stop)

    def run() -> None:
        try:
            asyncio.run(serve())
        except Exception as error:
            if address.done():
                raise
            address.set_exception(error)

    thread = threading.Thread(target=run, name="gateway")
    thread.start()
    try:
        yield address.result()
    finally:
        stop.set_result(None)
        thread.join()
