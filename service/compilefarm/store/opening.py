"""Opens stores: puts backend, cache, limit and signatures together."""

from __future__ import annotations

import asyncio
import re
import time

from obstore.store import MemoryStore

from compilefarm.core.errors import StoreUnavailable
from compilefarm.store.artifact_store import ArtifactStore
from compilefarm.store.backend import Backend
from compilefarm.store.cached import CachedStore
from compilefarm.store.collector import Collected, Collector
from compilefarm.store.content_addressed import ContentAddressedStore
from compilefarm.store.counting import SMALLEST_OBJECT_BYTES, CountingBackend
from compilefarm.store.damage import Damage
from compilefarm.store.entries import EntryStore
from compilefarm.store.entry_collector import CollectedEntries, EntryCollector
from compilefarm.store.entry_records import ENTRIES, SMALLEST_ENTRY_BYTES
from compilefarm.store.files import sweep
from compilefarm.store.layout import BLOBS, CHECKS, FORMER_SET_ASIDE, MANIFESTS, SET_ASIDE
from compilefarm.store.limited import LimitedStore
from compilefarm.store.local import open_directory
from compilefarm.store.object_backend import ObjectBackend
from compilefarm.store.probing import probe
from compilefarm.store.read_only import READ_ONLY_REMEDY, ReadOnlyBackend
from compilefarm.store.s3 import SCHEME, open_bucket
from compilefarm.store.signing_policy import UNSIGNED, SigningPolicy
from compilefarm.store.uses import Now, Uses

MEMORY = "memory:"
CACHES = "caches"
# A directory whose name begins like this is written "./name:...".
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


async def open_store(
    location: str,
    *,
    size_limit_bytes: int | None = None,
    cache_bytes: int = 0,
    read_only: bool = False,
    signing: SigningPolicy = UNSIGNED,
    now: Now = time.time,
) -> ArtifactStore:
    """Opens a store, and probes it unless it is read-only.

    Args:
        location: a directory, which is created if it is missing; "s3://bucket/prefix" (see `open_bucket`); or
            "memory:", which ends with the process.
        size_limit_bytes: beyond this size, artifacts are evicted; None keeps all.
        read_only: whether nothing is ever written; nothing is evicted then.
        cache_bytes: memory for what was read lately; 0: all is read from the storage every time.
        signing: how manifests are signed, and which are served.
        now: seconds since 1970.

    Raises:
        StoreUnavailable: it cannot be used; the message says why and what to do.
    """
    backend = await open_backend(location, read_only=read_only)
    if read_only:
        return _cached(_lying(await _counting(backend), signing=signing, now=now), cache_bytes=cache_bytes, now=now)
    return await build_store(
        backend, size_limit_bytes=size_limit_bytes, cache_bytes=cache_bytes, signing=signing, now=now
    )


async def build_store(
    backend: Backend,
    *,
    size_limit_bytes: int | None = None,
    cache_bytes: int = 0,
    signing: SigningPolicy = UNSIGNED,
    now: Now = time.time,
) -> ArtifactStore:
    """Like `open_store`, on a backend."""
    await _probe(backend)
    counting = await _counting(backend)
    lying = _lying(counting, signing=signing, now=now)
    store: ArtifactStore = lying
    if size_limit_bytes is not None:
        store = _limited(lying, backend=counting, size_limit_bytes=size_limit_bytes, now=now)
    return _cached(store, cache_bytes=cache_bytes, now=now)


async def open_caches(
    location: str,
    *,
    size_limit_bytes: int,
    lifetime_seconds: float,
    read_only: bool = False,
    now: Now = time.time,
) -> EntryStore:
    """Opens the store of cache entries beside a store of artifacts.

    Args:
        location: of the store of artifacts (see `open_store`).
        size_limit_bytes: beyond this size, entries are evicted.
        lifetime_seconds: entries that nobody has used for so long go.
        read_only: whether nothing is ever written; nothing is evicted then.
        now: seconds since 1970.

    Raises:
        StoreUnavailable: it cannot be used; the message says why and what to do.
    """
    backend = await open_backend(caches_beside(location), read_only=read_only)
    if not read_only:
        await _probe(backend)
    counting = CountingBackend(backend, areas=(ENTRIES,), smallest_bytes=SMALLEST_ENTRY_BYTES)
    await counting.count()
    uses = Uses(counting, now=now)
    collector = EntryCollector(counting, uses=uses, lifetime_seconds=lifetime_seconds)
    return EntryStore(counting, uses=uses, collector=collector, size_limit_bytes=size_limit_bytes)


async def collect_caches(
    location: str, *, size_limit_bytes: float, lifetime_seconds: float, dry_run: bool, now: Now = time.time
) -> CollectedEntries:
    """Collects garbage among the cache entries beside a store of artifacts. Services may be using them.

    Args:
        location: of the store of artifacts, a directory or "s3://bucket/prefix".
        size_limit_bytes: beyond this size, entries are evicted; infinite to keep all.
        lifetime_seconds: entries that nobody has used for so long go; infinite to keep all.
        dry_run: whether everything stays, and it is only found out what would go.
        now: seconds since 1970.

    Raises:
        StoreUnavailable: there are none, or they cannot be used; the message says why and what to do.
    """
    counting = CountingBackend(
        await open_backend(caches_beside(location), create=False), areas=(ENTRIES,), smallest_bytes=SMALLEST_ENTRY_BYTES
    )
    collector = EntryCollector(counting, uses=Uses(counting, now=now), lifetime_seconds=lifetime_seconds)
    return await collector.collect(limit_bytes=size_limit_bytes, dry_run=dry_run)


def caches_beside(location: str) -> str:
    """Returns where the entries of torch's caches lie, for the location of a store of artifacts."""
    if location == MEMORY:
        return MEMORY
    base, question, options = location.partition("?") if location.startswith(f"{SCHEME}:") else (location, "", "")
    return f"{base.rstrip('/')}/{CACHES}{question}{options}"


def _lying(backend: CountingBackend, *, signing: SigningPolicy, now: Now) -> ContentAddressedStore:
    return ContentAddressedStore(backend, uses=Uses(backend, now=now), damage=Damage(backend, now=now), signing=signing)


def _cached(store: ArtifactStore, *, cache_bytes: int, now: Now) -> ArtifactStore:
    return CachedStore(store, limit_bytes=cache_bytes, now=now) if cache_bytes else store


def _limited(
    store: ContentAddressedStore, *, backend: CountingBackend, size_limit_bytes: int, now: Now
) -> LimitedStore:
    return LimitedStore(
        store,
        backend=backend,
        collector=Collector(backend, manifests=store.manifests, uses=store.uses),
        size_limit_bytes=size_limit_bytes,
        now=now,
    )


async def collect_garbage(
    location: str, *, size_limit_bytes: int | None, dry_run: bool, now: Now = time.time
) -> Collected:
    """Collects garbage in a store. Services may be using it.

    Args:
        location: a directory, or "s3://bucket/prefix".
        size_limit_bytes: beyond this size, artifacts are evicted; None keeps all.
        dry_run: whether everything stays, and it is only found out what would go.
        now: seconds since 1970.

    Raises:
        StoreUnavailable: it is not there or cannot be used; the message says why and what to do.
    """
    counting = await _counting(await open_backend(location, create=False))
    uses = Uses(counting, now=now)
    store = ContentAddressedStore(counting, uses=uses, damage=Damage(counting, now=now), signing=UNSIGNED)
    collector = Collector(counting, manifests=store.manifests, uses=uses)
    return await collector.collect(limit_bytes=size_limit_bytes, dry_run=dry_run)


async def _counting(backend: Backend) -> CountingBackend:
    areas = (BLOBS, MANIFESTS, CHECKS, SET_ASIDE, FORMER_SET_ASIDE)
    counting = CountingBackend(backend, areas=areas, smallest_bytes=SMALLEST_OBJECT_BYTES)
    await counting.count()
    return counting


async def open_backend(location: str, *, create: bool = True, read_only: bool = False) -> Backend:
    """Opens the backend of a store. Writes nothing there.

    Args:
        location: see `open_store`.
        create: whether a directory is created if it is missing.
        read_only: whether it refuses to write.

    Raises:
        StoreUnavailable: it cannot be opened; the message says why and what to do.
    """
    if location == MEMORY:
        return await _swept(ObjectBackend(MemoryStore(), location=MEMORY))
    if location.startswith(f"{SCHEME}:"):
        bucket = open_bucket(location)
        if read_only:
            return ReadOnlyBackend(bucket)
        return await _swept(bucket) if create else bucket
    if not location or _SCHEME.match(location):
        raise StoreUnavailable(
            f"{location!r} cannot be a store: name a directory, s3://BUCKET/PREFIX, or {MEMORY!r} to keep nothing"
        )
    return await asyncio.to_thread(open_directory, location, create=create, read_only=read_only)


async def _swept(backend: Backend) -> Backend:
    """A backend of which nothing is on its way that nobody brings any more."""
    await asyncio.to_thread(lambda: sweep(backend.staging))
    return backend


async def _probe(backend: Backend) -> None:
    try:
        await probe(backend)
    except StoreUnavailable as error:
        if await _is_readable(backend):
            raise StoreUnavailable(f"{error}; {READ_ONLY_REMEDY}") from error
        raise


async def _is_readable(backend: Backend) -> bool:
    try:
        await backend.folders(MANIFESTS)
    except StoreUnavailable:
        return False
    return True
