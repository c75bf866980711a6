"""Removes cache entries: those that nobody has read for a while, and for room those that were used least recently.

Nothing relies on an entry, so none has a lease: whoever reads one has it open.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

from compilefarm.store.backend import StoredObject
from compilefarm.store.counting import CountingBackend
from compilefarm.store.entry_records import ENTRIES, namespace_of_entry, written_namespace
from compilefarm.store.layout import USES, use_path
from compilefarm.store.shares import share_of
from compilefarm.store.steps import in_steps, sort_in_steps
from compilefarm.store.uses import LEASE_SECONDS, Uses

NOTHING_COMING: Mapping[str, int] = {}


@dataclass(slots=True, kw_only=True)
class CollectedEntries:
    """What a collection removed, or would remove.

    Attributes:
        entries: how many entries.
        freed_bytes: their size.
        size_bytes: the size of what is left.
    """

    entries: int = 0
    freed_bytes: int = 0
    size_bytes: int = 0


class EntryCollector:
    """Collects garbage among cache entries. One collection at a time.

    Attributes:
        sizes: what each namespace has after a collection, by how paths write it.

    Args:
        backend: where they lie; it counts ENTRIES.
        uses: when they were used.
        lifetime_seconds: what was not used for so long goes.
    """

    def __init__(self, backend: CountingBackend, *, uses: Uses, lifetime_seconds: float) -> None:
        self._backend = backend
        self._uses = uses
        self._lifetime_seconds = lifetime_seconds
        self.sizes: Counter[str | None] = Counter()

    async def collect(
        self, *, limit_bytes: float, coming: Mapping[str, int] = NOTHING_COMING, dry_run: bool = False
    ) -> CollectedEntries:
        """Removes entries whose lifetime is over; and then, as long as the others take more than the limit, those that
        were used least recently of namespaces that have more than their share (see `share_of`).

        Args:
            limit_bytes: the limit, of what is stored and on its way.
            coming: bytes that are on their way, by namespace. They count as their namespace's, and cannot be removed.
            dry_run: whether everything stays, and it is only found out what would go.

        Raises:
            StoreUnavailable: the store cannot be read or written.
        """
        entries = await self._backend.list_area(ENTRIES)
        told = {stored.path: stored.modified_seconds async for stored in self._backend.objects(USES)}
        # In a thread, since there may be hundreds of thousands.
        going = await asyncio.to_thread(self._choose, entries, told=told, limit_bytes=limit_bytes, coming=coming)
        if not dry_run:
            for stored in going:
                await self._backend.delete(stored.path)
            if told:
                await self._remove_notes(told, kept=await asyncio.to_thread(_notes_of_rest, entries, going))
        left, freed = await asyncio.to_thread(_sum_up, entries.values(), going)
        self.sizes = left
        return CollectedEntries(entries=len(going), freed_bytes=freed.total(), size_bytes=left.total())

    def _choose(
        self,
        entries: Mapping[str, StoredObject],
        *,
        told: Mapping[str, float],
        limit_bytes: float,
        coming: Mapping[str, int],
    ) -> list[StoredObject]:
        by_use = sort_in_steps(entries.values(), key=lambda stored: self._last_use(stored, told=told))
        oldest_seconds = self._uses.now() - self._lifetime_seconds
        expired = [stored for stored in by_use if self._last_use(stored, told=told) < oldest_seconds]
        return expired + _least_recent(by_use[len(expired) :], limit_bytes=limit_bytes, coming=coming)

    def _last_use(self, stored: StoredObject, *, told: Mapping[str, float]) -> float:
        told_seconds = told.get(use_path(stored.path), 0.0)
        return max(stored.modified_seconds, told_seconds, self._uses.used_seconds(stored.path))

    async def _remove_notes(self, told: Mapping[str, float], *, kept: Set[str]) -> None:
        async for path, seconds in in_steps(told.items()):
            if path not in kept and self._uses.now() - seconds >= LEASE_SECONDS:
                await self._backend.delete(path)


def written_sizes(sizes: Mapping[str, int]) -> Mapping[str | None, int]:
    """Returns sizes of namespaces, by how paths write these."""
    return {written_namespace(namespace): size_bytes for namespace, size_bytes in sizes.items()}


def _notes_of_rest(entries: Iterable[str], going: Iterable[StoredObject]) -> Set[str]:
    """Where notes of use lie of entries that stay."""
    gone = {stored.path for stored in going}
    return {use_path(path) for path in entries if path not in gone}


def _sum_up(
    entries: Iterable[StoredObject], going: Iterable[StoredObject]
) -> tuple[Counter[str | None], Counter[str | None]]:
    """The sizes of what is left, and of what goes."""
    left, freed = _sizes_of(entries), _sizes_of(going)
    left.subtract(freed)
    return left, freed


def _sizes_of(entries: Iterable[StoredObject]) -> Counter[str | None]:
    sizes: Counter[str | None] = Counter()
    for stored in entries:
        sizes[namespace_of_entry(stored.path)] += stored.size_bytes
    return sizes


def _least_recent(by_use: list[StoredObject], *, limit_bytes: float, coming: Mapping[str, int]) -> list[StoredObject]:
    sizes = _sizes_of(by_use)
    sizes.update(written_sizes(coming))
    share_bytes = share_of(sizes, limit_bytes=limit_bytes)
    going: list[StoredObject] = []
    for stored in by_use:
        namespace = namespace_of_entry(stored.path)
        if sizes.total() > limit_bytes and sizes[namespace] > share_bytes:
            going.append(stored)
            sizes[namespace] -= stored.size_bytes
    return going
