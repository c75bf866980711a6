"""A store of limited size."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence

from compilefarm.core.contents import Content
from compilefarm.core.errors import StoreFull, StoreUnavailable
from compilefarm.store.artifact_store import ArtifactStore, WrappingStore
from compilefarm.store.collector import NOTHING_COMING, Collector
from compilefarm.store.counting import CountingBackend, counted_bytes
from compilefarm.store.files import StagedBlob
from compilefarm.store.layout import BLOBS, MANIFESTS, blob_path
from compilefarm.store.shares import NOBODY, share_of
from compilefarm.store.uses import Now, is_within
from compilefarm.v1.admin_service_pb2 import StoreUsage
from compilefarm.v1.manifest_pb2 import Check, Manifest

# So much is left when there was too much, with what is on its way, so that not every write has to make room.
KEPT_SHARE = 0.9
# So much of the limit uploads may fill at most, of those who have less than their share while others keep all in use.
MOST_SHARE = 2.0
# When everything is in use, it is tried again after this time.
RETRY_SECONDS = 60.0
_logger = logging.getLogger(__name__)


class LimitedStore(WrappingStore):
    """A store that evicts in the background after a write beyond the limit.

    Args:
        store: the store.
        backend: where it keeps everything.
        collector: makes the room.
        size_limit_bytes: the limit.
        now: seconds since 1970.
    """

    def __init__(
        self,
        store: ArtifactStore,
        *,
        backend: CountingBackend,
        collector: Collector,
        size_limit_bytes: int,
        now: Now,
    ) -> None:
        super().__init__(store)
        self._backend = backend
        self._collector = collector
        self._size_limit_bytes = size_limit_bytes
        self._kept_bytes = KEPT_SHARE * size_limit_bytes
        self._now = now
        # When no room could be made.
        self._failed_seconds = -math.inf
        # What each namespace has: as it was when room was made last, and what was written since.
        self._sizes: Counter[str | None] = Counter()
        self._evicted_artifacts = 0
        self._making_room: asyncio.Task[None] | None = None

    async def put_staged(self, blob: StagedBlob, *, digest: str, namespace: str) -> None:
        new_bytes = 0 if self._backend.has_counted(blob_path(digest)) else counted_bytes(blob.size_bytes)
        # First, since it may be written though whoever sends it goes away meanwhile.
        self._collector.note_holders([digest], namespace=namespace)
        self._sizes[namespace] += new_bytes
        try:
            await super().put_staged(blob, digest=digest, namespace=namespace)
        except Exception:
            self._sizes[namespace] -= new_bytes
            raise
        self._check_size()

    async def reserve(self, coming: Mapping[str, int], *, namespace: str) -> None:
        size_bytes = sum(coming.values())
        # Twice: the room that others were having made may not be enough.
        for _ in range(2):
            if not self._is_above(size_bytes):
                return
            self._check_size(coming)
            await self.has_room()
        if not self._is_above(size_bytes):
            return
        share_bytes = self._share_beyond_limit(coming, namespace=namespace)
        if share_bytes is not None:
            whose = f"namespace {namespace!r}" if namespace else "this namespace"
            share = f"the share of {whose} is {share_bytes:.0f} of them"
            raise self._full(size_bytes, f"{share}, and what is beyond shares is")
        if self._backend.size_bytes + size_bytes > MOST_SHARE * self._size_limit_bytes:
            raise self._full(size_bytes, "it holds more, and all of that is")

    async def put_blob(self, content: bytes, *, digest: str) -> None:
        await super().put_blob(content, digest=digest)
        self._check_size()

    async def find_missing(self, digests: Sequence[str], *, namespace: str | None = None) -> list[str]:
        missing = await super().find_missing(digests)
        if namespace is not None:
            self._collector.note_holders(set(digests).difference(missing), namespace=namespace)
        return missing

    async def put_artifact(self, manifest: Manifest, *, blobs: Mapping[str, Content]) -> Manifest:
        # No manifest names them at first, and they are not nobody's for that.
        self._collector.note_holders(blobs, namespace=manifest.namespace)
        new = [len(blob) for digest, blob in blobs.items() if not self._backend.has_counted(blob_path(digest))]
        stored = await super().put_artifact(manifest, blobs=blobs)
        sizes = manifest.ByteSize(), *new
        self._sizes[manifest.namespace] += sum(map(counted_bytes, sizes))
        self._check_size()
        return stored

    async def put_check(self, check: Check) -> None:
        await super().put_check(check)
        self._check_size()

    async def usage(self) -> StoreUsage:
        usage = await super().usage()
        usage.size_limit_bytes = self._size_limit_bytes
        usage.evicted_artifacts = self._evicted_artifacts
        return usage

    async def has_room(self) -> None:
        """Waits while room is being made."""
        if self._making_room is not None:
            # Whoever goes away meanwhile takes nothing from others.
            await asyncio.shield(self._making_room)

    def _is_above(self, further_bytes: int = 0) -> bool:
        return self._backend.size_bytes + further_bytes > self._size_limit_bytes

    def _full(self, size_bytes: int, why: str) -> StoreFull:
        return StoreFull(
            f"the store has no room for {size_bytes} bytes more: it may hold {self._size_limit_bytes}, {why} in use; "
            "compile locally, ask again when some was not used for an hour, or have --store-size-limit raised"
        )

    def _share_beyond_limit(self, coming: Mapping[str, int], *, namespace: str) -> float | None:
        """The share of a namespace that would have more, with what is on its way; None if it would not. What nobody is
        known to have counts as its own: it may have been sent for it to another service.
        """
        sizes = self._sizes.copy()
        held_bytes = sum(self._backend.count_of(area).size_bytes for area in (BLOBS, MANIFESTS))
        sizes[NOBODY] += max(held_bytes - sizes.total(), 0)
        sizes.update(coming)
        share_bytes = share_of(sizes, limit_bytes=self._kept_bytes)
        return share_bytes if sizes[namespace] + sizes[NOBODY] > share_bytes else None

    def _check_size(self, coming: Mapping[str, int] = NOTHING_COMING) -> None:
        is_busy = self._making_room is not None and not self._making_room.done()
        has_failed = is_within(RETRY_SECONDS, since_seconds=self._failed_seconds, now_seconds=self._now())
        if self._is_above(sum(coming.values())) and not is_busy and not has_failed:
            self._making_room = asyncio.create_task(self._make_room(coming), name="store eviction")

    async def _make_room(self, coming: Mapping[str, int]) -> None:
        self._sizes = Counter()
        try:
            collected = await self._collector.collect(limit_bytes=self._kept_bytes, coming=coming)
        except StoreUnavailable as error:
            _logger.error("no room could be made in the store: %s", error)
            self._failed_seconds = self._now()
            return
        self._evicted_artifacts += collected.artifacts
        _logger.info(
            "made room in the store: %d artifacts and %d blobs went, %d bytes of them and others; %d bytes are left",
            *(collected.artifacts, collected.blobs, collected.freed_bytes, collected.size_bytes),
        )
        self._sizes.update(self._collector.sizes)
        self._sizes.subtract(coming)
        if collected.size_bytes + sum(coming.values()) > self._size_limit_bytes:
            self._failed_seconds = self._now()
        if collected.size_bytes > self._size_limit_bytes:
            _logger.warning(
                "the store holds %d bytes, more than its limit of %d, and all that may go is in use: raise the limit",
                *(collected.size_bytes, self._size_limit_bytes),
            )
