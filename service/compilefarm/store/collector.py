"""Takes out of the store what nobody needs: first what nothing names, then what was used least recently.

Whoever has been given a manifest may fetch its blobs, and whoever has sent or found a blob may name it in a manifest,
for LEASE_SECONDS. A manifest goes before the blobs that it names, so that none is ever left without its blobs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from compilefarm.core.artifacts import blobs_of
from compilefarm.core.errors import StoreUnavailable
from compilefarm.store.backend import StoredObject
from compilefarm.store.blobs import few_at_a_time
from compilefarm.store.checks import KEPT_SECONDS, CheckStore
from compilefarm.store.counting import CountingBackend
from compilefarm.store.layout import (
    BLOBS,
    MANIFESTS,
    PROBES,
    SET_ASIDE,
    USES,
    blob_path,
    key_of,
    namespace_of,
    use_path,
)
from compilefarm.store.manifests import ManifestStore
from compilefarm.store.records import NewerRecord
from compilefarm.store.uses import LEASE_SECONDS, Uses

# Damaged objects are kept that long for whoever wants to look at them, unless the room is needed.
SET_ASIDE_SECONDS = 7 * 24 * 3600.0


@dataclass(slots=True, kw_only=True)
class Collected:
    """What was taken out, or would be.

    Attributes:
        artifacts: how many artifacts.
        blobs: how many blobs.
        damaged: how many damaged objects that were set aside.
        freed_bytes: the size of all of them.
        size_bytes: the size of what is left.
    """

    artifacts: int = 0
    blobs: int = 0
    damaged: int = 0
    freed_bytes: int = 0
    size_bytes: int = 0


class Collector:
    """Collects what is not needed in a store. One collection at a time.

    Args:
        backend: where everything lies; it counts blobs, manifests and what was set aside.
        manifests: its manifests.
        uses: who relies on what.
    """

    def __init__(self, backend: CountingBackend, *, manifests: ManifestStore, uses: Uses) -> None:
        self._backend = backend
        self._manifests = manifests
        self._uses = uses
        # The manifests that were read and the paths of their blobs. They do not change, but one may follow another.
        self._read: dict[StoredObject, frozenset[str]] = {}

    async def collect(self, *, limit_bytes: int | None = None, dry_run: bool = False) -> Collected:
        """Removes blobs that no manifest names, manifests whose blobs are lost, and old damaged objects; and then, as
        long as the store is larger than the limit, damaged objects and the artifacts that were used least recently.

        Args:
            limit_bytes: the limit; None if there is none.
            dry_run: whether everything stays, and it is only found out what would go.

        Raises:
            StoreUnavailable: the store cannot be read or written, or a newer release has written into it, and it is
                not known which blobs that one needs.
        """
        # Manifests first: the blobs of each were there before it.
        manifests = await self._backend.list_area(MANIFESTS)
        blobs = await self._backend.list_area(BLOBS)
        damaged = await self._backend.list_area(SET_ASIDE)
        told = {entry.path: entry.modified_seconds async for entry in self._backend.objects(USES)}
        size_bytes = sum(entry.size_bytes for area in (manifests, blobs, damaged) for entry in area.values())
        self._read = await self._names(manifests.values())
        sweep = _Sweep(
            self._backend,
            uses=self._uses,
            artifacts=self._read,
            blobs=blobs,
            told=told,
            collected=Collected(size_bytes=size_bytes),
            dry_run=dry_run,
        )
        await sweep.remove_nameless()
        await sweep.remove_incomplete()
        await sweep.remove_damaged(damaged.values(), limit_bytes=limit_bytes)
        if limit_bytes is not None:
            await sweep.evict(limit_bytes=limit_bytes)
        if not dry_run:
            await self._remove_traces(told, remaining=manifests.keys() | blobs.keys())
            await CheckStore(self._backend).forget(
                before_seconds=self._uses.now() - KEPT_SECONDS, but=frozenset(map(key_of, manifests))
            )
        return sweep.collected

    async def _names(self, manifests: Iterable[StoredObject]) -> dict[StoredObject, frozenset[str]]:
        """The manifests that can be read, and the paths of the blobs that each names."""

        async def names(entry: StoredObject) -> frozenset[str] | None:
            return self._read[entry] if entry in self._read else await self._read_names(entry.path)

        entries = list(manifests)
        found = await few_at_a_time(names, entries)
        return {entry: named for entry, named in zip(entries, found, strict=True) if named is not None}

    async def _read_names(self, path: str) -> frozenset[str] | None:
        try:
            manifest = await self._manifests.read(path)
        except NewerRecord as error:
            raise StoreUnavailable(
                f"a newer release of Compilefarm has written {path} into the store at {self._backend.location}, so "
                "this one does not know which blobs are needed, and removes nothing: use the newer release for that"
            ) from error
        return None if manifest is None else frozenset(blob_path(blob.digest) for blob in blobs_of(manifest))

    async def _remove_traces(self, told: Mapping[str, float], *, remaining: Iterable[str]) -> None:
        """Removes notes on the use of what is gone, and what services left that were killed while they opened it."""
        of_interest = set(map(use_path, remaining))
        probes = {entry.path: entry.modified_seconds async for entry in self._backend.objects(PROBES)}
        for path, seconds in {**told, **probes}.items():
            if path not in of_interest and self._uses.now() - seconds >= LEASE_SECONDS:
                await self._backend.delete(path)


class _Sweep:
    """One collection."""

    def __init__(
        self,
        backend: CountingBackend,
        *,
        uses: Uses,
        artifacts: Mapping[StoredObject, frozenset[str]],
        blobs: Mapping[str, StoredObject],
        told: Mapping[str, float],
        collected: Collected,
        dry_run: bool,
    ) -> None:
        self._backend = backend
        self._uses = uses
        self._artifacts = artifacts
        self._blobs = blobs
        self._told = told
        self._dry_run = dry_run
        self._namers = Counter(path for named in artifacts.values() for path in named)
        self._gone: set[str] = set()
        self.collected = collected

    async def remove_nameless(self) -> None:
        """Removes blobs that no manifest names."""
        for path in self._blobs.keys() - self._namers.keys():
            await self._remove_blob(path)

    async def remove_incomplete(self) -> None:
        """Removes manifests whose blobs are not all there."""
        for entry, named in self._artifacts.items():
            if not named <= self._blobs.keys():
                await self._remove_artifact(entry)

    async def remove_damaged(self, damaged: Iterable[StoredObject], *, limit_bytes: int | None) -> None:
        """Removes damaged objects that are old; if the room is needed, the younger ones too."""
        for entry in sorted(damaged, key=lambda entry: entry.modified_seconds):
            is_old = self._uses.now() - entry.modified_seconds >= SET_ASIDE_SECONDS
            if is_old or self._is_above(limit_bytes):
                if not self._dry_run:
                    await self._backend.delete(entry.path)
                self.collected.damaged += not entry.path.endswith(".reason")
                self._count(entry)

    async def evict(self, *, limit_bytes: int) -> None:
        """Removes the artifacts that were used least recently, until the limit is kept or all others are in use: first
        of namespaces that have more than an equal share, so that what one has made does not push out what others have.
        """
        sizes = self._sizes_of_namespaces()
        share_bytes = limit_bytes / max(len(sizes), 1)
        for least_bytes in (share_bytes, 0):
            for entry in sorted(self._artifacts, key=self._last_use):
                if not self._is_above(limit_bytes):
                    return
                if entry.path not in self._gone and sizes[namespace_of(entry.path)] > least_bytes:
                    await self._remove_artifact(entry)
                    sizes[namespace_of(entry.path)] -= self._size_of(entry) if entry.path in self._gone else 0

    def _sizes_of_namespaces(self) -> Counter[str]:
        sizes: Counter[str] = Counter()
        for entry in self._artifacts:
            sizes[namespace_of(entry.path)] += self._size_of(entry)
        return sizes

    def _size_of(self, entry: StoredObject) -> int:
        """Of a manifest and the blobs that it names. What several name counts for each of them."""
        named = (self._blobs[path].size_bytes for path in self._artifacts[entry] if path in self._blobs)
        return entry.size_bytes + sum(named)

    def _is_above(self, limit_bytes: int | None) -> bool:
        return limit_bytes is not None and self.collected.size_bytes > limit_bytes

    def _last_use(self, entry: StoredObject) -> float:
        return max(self._told_use(entry), self._uses.used_seconds(entry.path))

    def _told_use(self, entry: StoredObject) -> float:
        return max(entry.modified_seconds, self._told.get(use_path(entry.path), 0.0))

    async def _remove_artifact(self, entry: StoredObject) -> None:
        if not await self._remove(entry):
            return
        self.collected.artifacts += 1
        for path in self._artifacts[entry]:
            self._namers[path] -= 1
            if not self._namers[path] and path in self._blobs:
                await self._remove_blob(path)

    async def _remove_blob(self, path: str) -> None:
        self.collected.blobs += await self._remove(self._blobs[path])

    async def _remove(self, entry: StoredObject) -> bool:
        if self._uses.has_lease(entry.path, told_seconds=self._told_use(entry)):
            return False
        if not self._dry_run and not await self._uses.end(entry.path):
            return False
        self._gone.add(entry.path)
        self._count(entry)
        return True

    def _count(self, entry: StoredObject) -> None:
        self.collected.freed_bytes += entry.size_bytes
        self.collected.size_bytes -= entry.size_bytes
