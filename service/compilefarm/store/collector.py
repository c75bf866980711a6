"""Garbage collection: removes blobs that no manifest names, then the artifacts that were used least recently.

Whoever has been given a manifest may fetch its blobs, and whoever has sent or found a blob may name it in a manifest,
for LEASE_SECONDS. A manifest goes before the blobs that it names, so that none is ever left without its blobs.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from itertools import chain

from compilefarm.core.artifacts import blobs_of
from compilefarm.core.errors import StoreUnavailable
from compilefarm.store.backend import StoredObject
from compilefarm.store.blobs import few_at_a_time
from compilefarm.store.checks import KEPT_SECONDS, CheckStore
from compilefarm.store.counting import CountingBackend
from compilefarm.store.layout import (
    BLOBS,
    CHECKS,
    FAILURES,
    FORMER_SET_ASIDE,
    KEY_LEASES,
    MANIFESTS,
    PROBES,
    SESSIONS,
    SET_ASIDE,
    USES,
    blob_path,
    key_of,
    namespace_of,
    use_path,
)
from compilefarm.store.manifests import ManifestStore
from compilefarm.store.records import NewerRecord, OlderRecord
from compilefarm.store.shares import Holdings, share_of
from compilefarm.store.steps import in_steps, sorted_in_thread
from compilefarm.store.uses import LEASE_SECONDS, Uses

# Damaged objects are kept that long for whoever wants to look at them, unless the room is needed.
SET_ASIDE_SECONDS = 7 * 24 * 3600.0
# Of what nobody used for so long, nobody has a share: there may be namespaces of which nobody is left.
FORGOTTEN_SECONDS = 7 * 24 * 3600.0
NOTHING_COMING: Mapping[str, int] = {}
# Of so many blobs that no manifest may name it is remembered whose they are: some 15 MB.
_MOST_HOLDERS = 50_000


@dataclass(slots=True, kw_only=True)
class Collected:
    """What a collection removed, or would remove.

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
    """Collects garbage in a store. One collection at a time.

    Args:
        backend: where everything lies; it counts blobs, manifests, checks and what was set aside.
        manifests: its manifests.
        uses: the leases of objects.

    Attributes:
        sizes: of what each namespace had left and on its way, when there was a limit last (see `Holdings`).
    """

    def __init__(self, backend: CountingBackend, *, manifests: ManifestStore, uses: Uses) -> None:
        self._backend = backend
        self._manifests = manifests
        self._uses = uses
        self.sizes: Mapping[str | None, int] = {}
        # The manifests that were read and the paths of their blobs. They do not change, but one may follow another.
        self._read: dict[StoredObject, frozenset[str]] = {}
        # For whom blobs were sent or found last, by path, the latest last; what manifests name goes with each look.
        self._holders: dict[str, str] = {}

    def note_holders(self, digests: Iterable[str], *, namespace: str) -> None:
        """Has blobs count for a namespace that relies on them, as long as no manifest names them. Of too many, the
        earliest count as nobody's.
        """
        for path in map(blob_path, digests):
            self._holders.pop(path, None)
            self._holders[path] = namespace
        while len(self._holders) > _MOST_HOLDERS:
            del self._holders[next(iter(self._holders))]

    async def collect(
        self,
        *,
        limit_bytes: float | None = None,
        coming: Mapping[str, int] = NOTHING_COMING,
        dry_run: bool = False,
    ) -> Collected:
        """Removes blobs that no manifest names, manifests whose blobs are lost, and old damaged objects; and then, as
        long as the store is larger than the limit, damaged objects, checks and, of namespaces that have more than their
        share, the artifacts that were used least recently.

        Args:
            limit_bytes: the limit, of what is stored and on its way; None if there is none.
            coming: bytes that are on their way, by namespace. They count as their namespace's, and cannot be removed.
            dry_run: whether everything stays, and it is only found out what would go.

        Raises:
            StoreUnavailable: the store cannot be read or written, or a newer release has written into it, and it is
                not known which blobs that one needs.
        """
        holders = list(self._holders)
        # Manifests first: the blobs of each were there before it.
        manifests = await self._backend.list_area(MANIFESTS)
        blobs = await self._backend.list_area(BLOBS)
        damaged = await self._backend.list_area(SET_ASIDE) | await self._backend.list_area(FORMER_SET_ASIDE)
        checks = await self._backend.list_area(CHECKS)
        told = {stored.path: stored.modified_seconds async for stored in self._backend.objects(USES)}
        size_bytes = await asyncio.to_thread(_size_of_areas, (manifests, blobs, damaged, checks))
        self._read = await self._names(manifests.values())
        sweep = _Sweep(
            self._backend,
            uses=self._uses,
            artifacts=self._read,
            blobs=blobs,
            references=await asyncio.to_thread(_count_references, self._read),
            told=told,
            holders=self._holders,
            coming=coming,
            collected=Collected(size_bytes=size_bytes),
            dry_run=dry_run,
        )
        await sweep.remove_unreferenced()
        await sweep.remove_incomplete()
        await sweep.remove_damaged(damaged.values(), limit_bytes=limit_bytes)
        await sweep.remove_checks(checks.values(), limit_bytes=limit_bytes)
        if limit_bytes is not None:
            self.sizes = await sweep.evict(limit_bytes=limit_bytes)
        if not dry_run:
            async for path in in_steps(holders):
                if path in blobs and not sweep.is_loose(path):
                    self._holders.pop(path, None)
            await self._remove_notes(told, kept=await asyncio.to_thread(_notes_of, (manifests, blobs)))
            keys = await asyncio.to_thread(_keys_of, manifests)
            await CheckStore(self._backend).forget(before_seconds=self._uses.now() - KEPT_SECONDS, but=keys)
        return sweep.collected

    async def _names(self, manifests: Iterable[StoredObject]) -> dict[StoredObject, frozenset[str]]:
        """Returns the paths of the blobs that each readable manifest names."""

        named: dict[StoredObject, frozenset[str]] = {}
        unread: list[StoredObject] = []
        async for stored in in_steps(manifests):
            if (known := self._read.get(stored)) is not None:
                named[stored] = known
            else:
                unread.append(stored)
        found = await few_at_a_time(lambda stored: self._read_names(stored.path), unread)
        async for stored, names in in_steps(zip(unread, found, strict=True)):
            if names is not None:
                named[stored] = names
        return named

    async def _read_names(self, path: str) -> frozenset[str] | None:
        try:
            manifest = await self._manifests.read(path)
        except OlderRecord as older:
            # Nobody asks for it here. It goes as others do that nobody uses.
            manifest = older.manifest
        except NewerRecord as error:
            raise StoreUnavailable(
                f"a newer release of Compilefarm has written {path} into the store at {self._backend.location}, so "
                "this one does not know which blobs are needed, and removes nothing: use the newer release for that"
            ) from error
        return None if manifest is None else frozenset(blob_path(blob.digest) for blob in blobs_of(manifest))

    async def _remove_notes(self, told: Mapping[str, float], *, kept: Set[str]) -> None:
        """Removes notes of use of removed objects, probes of services that were killed, and what these told others."""
        probes = {stored.path: stored.modified_seconds async for stored in self._backend.objects(PROBES)}
        async for path, seconds in in_steps(chain(told.items(), probes.items())):
            if path not in kept and self._uses.now() - seconds >= LEASE_SECONDS:
                await self._backend.delete(path)
        for area in (FAILURES, KEY_LEASES, SESSIONS):
            old = [stored.path async for stored in self._backend.objects(area) if self._is_forgotten(stored)]
            for path in old:
                await self._backend.delete(path)

    def _is_forgotten(self, stored: StoredObject) -> bool:
        return self._uses.now() - stored.modified_seconds >= KEPT_SECONDS


class _Sweep:
    """One collection."""

    def __init__(
        self,
        backend: CountingBackend,
        *,
        uses: Uses,
        artifacts: Mapping[StoredObject, frozenset[str]],
        blobs: Mapping[str, StoredObject],
        references: Counter[str],
        told: Mapping[str, float],
        holders: dict[str, str],
        coming: Mapping[str, int],
        collected: Collected,
        dry_run: bool,
    ) -> None:
        self._backend = backend
        self._uses = uses
        self._artifacts = artifacts
        self._blobs = blobs
        self._told = told
        self._dry_run = dry_run
        self._references = references
        self._holders = holders
        self._coming = coming
        self._coming_bytes = sum(coming.values())
        self._gone: set[str] = set()
        self.collected = collected

    async def remove_unreferenced(self) -> None:
        """Removes blobs that no manifest names."""
        async for path in in_steps(self._blobs):
            if path not in self._references:
                await self._remove_blob(path)

    async def remove_incomplete(self) -> None:
        """Removes manifests whose blobs are not all there."""
        async for stored, named in in_steps(self._artifacts.items()):
            if not named <= self._blobs.keys():
                await self._remove_artifact(stored)

    async def remove_damaged(self, damaged: Iterable[StoredObject], *, limit_bytes: float | None) -> None:
        """Removes damaged objects that are old; if the room is needed, the younger ones too."""
        by_age = await sorted_in_thread(damaged, key=lambda stored: stored.modified_seconds)
        async for stored in in_steps(by_age):
            is_old = self._uses.now() - stored.modified_seconds >= SET_ASIDE_SECONDS
            if is_old or self._is_above(limit_bytes):
                if not self._dry_run:
                    await self._backend.delete(stored.path)
                self.collected.damaged += not stored.path.endswith(".reason")
                self._count(stored)

    async def remove_checks(self, checks: Iterable[StoredObject], *, limit_bytes: float | None) -> None:
        """Removes what was found of artifacts if the room is needed: first what takes most, which is what says the
        request of a failure.
        """
        if not self._is_above(limit_bytes):
            return
        by_size = await sorted_in_thread(checks, key=lambda stored: (-stored.size_bytes, stored.modified_seconds))
        async for stored in in_steps(by_size):
            if not self._is_above(limit_bytes):
                return
            if not self._dry_run:
                await self._backend.delete(stored.path)
            self._count(stored)

    async def evict(self, *, limit_bytes: float) -> Mapping[str | None, int]:
        """Removes the artifacts that were used least recently of namespaces that have more than their share, until the
        limit is kept or all others of these are in use; then those that nobody used for FORGOTTEN_SECONDS. Whatever
        others keep in use, nobody loses anything else within its share. What artifacts of others leave behind counts
        for who relies on it from the next time on. Returns what each has left.
        """
        holdings = await asyncio.to_thread(self._count_holdings)
        share_bytes = share_of(holdings.sizes, limit_bytes=limit_bytes)
        by_use = await sorted_in_thread(self._artifacts, key=self._last_use)
        left_behind: dict[str, str] = {}
        for least_bytes, before_seconds in ((share_bytes, math.inf), (0.0, self._uses.now() - FORGOTTEN_SECONDS)):
            async for stored in in_steps(by_use):
                if not self._is_above(limit_bytes) or self._last_use(stored) > before_seconds:
                    break
                if stored.path not in self._gone and holdings.sizes[namespace_of(stored.path)] > least_bytes:
                    left_behind |= await self._remove_counted(stored, holdings=holdings)
        for path, holder in left_behind.items():
            holdings.add_loose(self._blobs[path], holder=holder)
        return holdings.sizes

    async def _remove_counted(self, stored: StoredObject, *, holdings: Holdings) -> dict[str, str]:
        """Returns the blobs that it leaves behind and others rely on, with who does."""
        await self._remove_artifact(stored)
        if stored.path not in self._gone:
            return {}
        holdings.remove(stored, named=self._artifacts[stored])
        owner = namespace_of(stored.path)
        holders = {path: self._holders.get(path, owner) for path in self._artifacts[stored] if self.is_loose(path)}
        for path, holder in holders.items():
            if holder == owner:
                holdings.add_loose(self._blobs[path], holder=owner)
        return {path: holder for path, holder in holders.items() if holder != owner}

    def is_loose(self, path: str) -> bool:
        """Returns whether a blob is there that no manifest names."""
        return path in self._blobs and path not in self._gone and not self._references[path]

    def _count_holdings(self) -> Holdings:
        holdings = Holdings(self._blobs, coming=self._coming)
        for stored, named in self._artifacts.items():
            if stored.path not in self._gone:
                holdings.add(stored, named=named)
        # A copy: others send meanwhile, and this runs in a thread.
        for path, holder in dict(self._holders).items():
            if self.is_loose(path):
                holdings.add_loose(self._blobs[path], holder=holder)
        holdings.add_rest(self.collected.size_bytes)
        return holdings

    def _is_above(self, limit_bytes: float | None) -> bool:
        return limit_bytes is not None and self.collected.size_bytes + self._coming_bytes > limit_bytes

    def _last_use(self, stored: StoredObject) -> float:
        return max(self._told_use(stored), self._uses.used_seconds(stored.path))

    def _told_use(self, stored: StoredObject) -> float:
        return max(stored.modified_seconds, self._told.get(use_path(stored.path), 0.0))

    async def _remove_artifact(self, stored: StoredObject) -> None:
        if not await self._remove(stored):
            return
        self.collected.artifacts += 1
        for path in self._artifacts[stored]:
            self._references[path] -= 1
            if not self._references[path] and path in self._blobs:
                await self._remove_blob(path)
            if self.is_loose(path):
                # It is in use: whoever had it named has it, until somebody else relies on it.
                self._holders.setdefault(path, namespace_of(stored.path))

    async def _remove_blob(self, path: str) -> None:
        self.collected.blobs += await self._remove(self._blobs[path])

    async def _remove(self, stored: StoredObject) -> bool:
        if self._uses.has_lease(stored.path, told_seconds=self._told_use(stored)):
            return False
        if not self._dry_run and not await self._uses.end(stored.path):
            return False
        self._gone.add(stored.path)
        self._count(stored)
        return True

    def _count(self, stored: StoredObject) -> None:
        self.collected.freed_bytes += stored.size_bytes
        self.collected.size_bytes -= stored.size_bytes


def _size_of_areas(areas: Iterable[Mapping[str, StoredObject]]) -> int:
    return sum(stored.size_bytes for area in areas for stored in area.values())


def _count_references(artifacts: Mapping[StoredObject, frozenset[str]]) -> Counter[str]:
    """How many artifacts name each blob."""
    counts: Counter[str] = Counter()
    for named in artifacts.values():
        counts.update(named)
    return counts


def _notes_of(areas: Iterable[Iterable[str]]) -> Set[str]:
    """Where notes of use lie of some objects."""
    return {use_path(path) for area in areas for path in area}


def _keys_of(manifests: Iterable[str]) -> frozenset[str]:
    return frozenset(map(key_of, manifests))
