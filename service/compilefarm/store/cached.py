"""A store with a cache of blobs and manifests in memory.

Blobs are kept for as long as there is room. They were checked against their digest when they were read, so what becomes
of the storage afterwards cannot make them wrong: damage below them shows when they are next read from there.

Manifests are kept for FRESH_SECONDS. They do not change, but whether one may be served does: its blobs have to be
there, and it must not be withdrawn. What this process learns of that counts at once: when it withdraws one, it
forgets all manifests, and when it does not find a blob, those that name it. A lookup that began before an artifact was
stored answers nobody who asks after that: single flight relies on it. What another process does to the same storage
counts after FRESH_SECONDS. Its eviction cannot come before that: to find a manifest begins a lease of LEASE_SECONDS on
it (`uses`), of which others know for three quarters of that time at least, and a manifest goes before its blobs. So
whoever is given a manifest from memory has as good as the same time to fetch them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from compilefarm.core.artifacts import blobs_of
from compilefarm.core.contents import Content
from compilefarm.core.errors import NotStored
from compilefarm.store.artifact_store import EVERYBODYS, ArtifactStore, WrappingStore
from compilefarm.store.cache import Cache
from compilefarm.store.files import InMemory, Readable
from compilefarm.store.uses import Now
from compilefarm.v1.manifest_pb2 import Manifest

FRESH_SECONDS = 10.0
# Of the memory, for manifests.
_MANIFESTS_SHARE = 1 / 16
# Measured: a parsed manifest of 14 kB takes twice its size on the wire, one of 1.5 kB five times.
_GROWTH_WHEN_PARSED = 4
# Whoever reads slowly keeps what it reads, also when the cache has let it go. Larger blobs are read from files.
_LARGE_BYTES = 8 * 1024 * 1024

# A key, namespaces, and hints: what manifests are found by.
_Question = tuple[str, tuple[str, ...], tuple[int, ...] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """A manifest, and the digests of the blobs that it names."""

    manifest: Manifest
    digests: frozenset[str]


class CachedStore(WrappingStore):
    """A store that keeps in memory what was read.

    Args:
        store: the store.
        limit_bytes: how much memory that takes.
        now: seconds since 1970.
    """

    def __init__(self, store: ArtifactStore, *, limit_bytes: int, now: Now) -> None:
        super().__init__(store)
        manifests_bytes = int(_MANIFESTS_SHARE * limit_bytes)
        self._blobs: Cache[str, bytes] = Cache(limit_bytes=limit_bytes - manifests_bytes, size_of=len, now=now)
        self._manifests: Cache[_Question, _Known] = Cache(
            limit_bytes=manifests_bytes, size_of=_size_of, kept_seconds=FRESH_SECONDS, now=now
        )

    async def find_manifest(
        self,
        key: str,
        *,
        namespaces: Sequence[str] = EVERYBODYS,
        hints: Sequence[int] | None = None,
        fresh: bool = False,
    ) -> Manifest | None:
        question = key, tuple(namespaces), None if hints is None else tuple(hints)
        if fresh:
            # A miss is not kept, but one that is being looked up may have begun before the artifact was stored.
            self._manifests.renew(lambda asked: asked == question)
        known = await self._manifests.get(question, load=partial(self._load, question))
        return None if known is None else known.manifest

    async def get_blob(self, digest: str) -> bytes:
        try:
            content = await self._blobs.get(digest, load=partial(super().get_blob, digest))
        except NotStored:
            self._manifests.forget(lambda known: digest in known.digests)
            raise
        assert content is not None, "the store raises where there is none"
        return content

    @asynccontextmanager
    async def reading(self, digest: str) -> AsyncIterator[Readable]:
        size_bytes = None if self._blobs.holds(digest) else await super().find_size(digest)
        if size_bytes is not None and size_bytes > _LARGE_BYTES:
            async with super().reading(digest) as content:
                yield content
        else:
            yield InMemory(await self.get_blob(digest))

    async def put_artifact(self, manifest: Manifest, *, blobs: Mapping[str, Content]) -> Manifest:
        try:
            return await super().put_artifact(manifest, blobs=blobs)
        finally:
            self._manifests.renew(lambda question: question[0] == manifest.key)

    async def withdraw(self, manifest: Manifest, *, reason: str) -> bool:
        withdrawn = await super().withdraw(manifest, reason=reason)
        self._manifests.forget(lambda _: True)
        return withdrawn

    async def _load(self, question: _Question) -> _Known | None:
        key, namespaces, hints = question
        manifest = await super().find_manifest(key, namespaces=namespaces, hints=hints)
        if manifest is None:
            return None
        return _Known(manifest=manifest, digests=frozenset(blob.digest for blob in blobs_of(manifest)))


def _size_of(known: _Known) -> int:
    return _GROWTH_WHEN_PARSED * known.manifest.ByteSize()
