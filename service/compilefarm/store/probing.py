"""Probes whether a storage can be written."""

from __future__ import annotations

import asyncio
import uuid

from compilefarm.core.errors import StoreUnavailable
from compilefarm.store.backend import Backend
from compilefarm.store.layout import PROBES


async def probe(backend: Backend) -> None:
    """Writes a small object, reads it, and deletes it, also when nobody waits for the answer any more.

    Raises:
        StoreUnavailable: the storage cannot be written, or does not give back what was.
    """
    probing = asyncio.create_task(_probe(backend), name=f"probe of {backend.location}")
    # Who waits may have gone; asyncio must not complain that nobody looked at the error.
    probing.add_done_callback(lambda done: done.cancelled() or done.exception())
    await asyncio.shield(probing)


async def _probe(backend: Backend) -> None:
    path, content = f"{PROBES}/{uuid.uuid4().hex}", b"written to find out whether this can be"
    await backend.create(path, content=content)
    found = await backend.find(path)
    await backend.delete(path)
    if found != content:
        raise StoreUnavailable(f"the store at {backend.location} does not give back what was written to it")
