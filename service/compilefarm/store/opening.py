"""Puts a store together."""

from __future__ import annotations

import asyncio
import re
import uuid

from obstore.store import MemoryStore

from compilefarm.core.errors import StoreUnavailable
from compilefarm.store.artifact_store import ArtifactStore
from compilefarm.store.backend import Backend
from compilefarm.store.content_addressed import ContentAddressedStore
from compilefarm.store.counting import CountingBackend
from compilefarm.store.layout import BLOBS, MANIFESTS
from compilefarm.store.local import open_directory
from compilefarm.store.object_backend import ObjectBackend

MEMORY = "memory:"
# A directory whose name begins like this is written "./name:...".
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


async def open_store(location: str) -> ArtifactStore:
    """Opens a store and makes sure that it can be written.

    Args:
        location: a directory, which is created if it is missing; or "memory:", which ends with the process.

    Raises:
        StoreUnavailable: it cannot be used; the message says why and what to do.
    """
    return await build_store(await _open_backend(location))


async def build_store(backend: Backend) -> ArtifactStore:
    """Builds a store on a backend and makes sure that it can be written.

    Raises:
        StoreUnavailable: it cannot.
    """
    await _probe(backend)
    counting = CountingBackend(backend, areas=(BLOBS, MANIFESTS))
    await counting.count()
    return ContentAddressedStore(counting)


async def _open_backend(location: str) -> Backend:
    if location == MEMORY:
        return ObjectBackend(MemoryStore(), location=MEMORY)
    if not location or _SCHEME.match(location):
        raise StoreUnavailable(f"{location!r} cannot be a store: name a directory, or {MEMORY!r} to keep nothing")
    return await asyncio.to_thread(open_directory, location)


async def _probe(backend: Backend) -> None:
    path, content = f"probe-{uuid.uuid4().hex}", b"written when a store is opened"
    await backend.create(path, content=content)
    found = await backend.find(path)
    await backend.delete(path)
    if found != content:
        raise StoreUnavailable(f"the store at {backend.location} does not give back what was written to it")
