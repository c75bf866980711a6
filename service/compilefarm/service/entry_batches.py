"""Cache entries, each with those that are probably asked for next, as they are sent: many ask for the same at once."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from compilefarm.core.cache_entries import is_rewritten
from compilefarm.service.trails import EntryName, Trails
from compilefarm.store.cache import Cache
from compilefarm.store.checked_entries import CheckedEntry
from compilefarm.store.entries import EntryStore
from compilefarm.v1.cache_service_pb2 import TorchCache

# cache_service.proto: FindEntryRequest.ahead_bytes.
_MOST_AHEAD_BYTES = 2 * 1024 * 1024
_KEPT_SECONDS = 1.0
_KEPT_BYTES = 32 * 1024 * 1024
# Of a batch without entries, in memory.
_EMPTY_BYTES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryBatch:
    """An entry, and those that come ahead.

    Attributes:
        first: the entry.
        ahead: how many come ahead, by cache.
        last: the name of the last one that comes ahead, or of the entry.
        answer: a FindEntryResponse with all, serialized.
        size_bytes: their bytes.
    """

    first: CheckedEntry
    ahead: Mapping[TorchCache.ValueType, int]
    last: EntryName
    answer: bytes
    size_bytes: int


class EntryBatches:
    """Entries of a store, with those that come ahead.

    Args:
        store: where they lie.
    """

    def __init__(self, store: EntryStore) -> None:
        self._store = store
        # By the namespaces of the caller: nobody learns of others what they ask for, or has them forgotten.
        self._trails: defaultdict[tuple[str, ...], Trails] = defaultdict(Trails)
        self._writes = 0
        self._batches: Cache[tuple[tuple[EntryName, ...], int], EntryBatch] = Cache(
            limit_bytes=_KEPT_BYTES,
            size_of=lambda batch: _EMPTY_BYTES + len(batch.answer),
            kept_seconds=_KEPT_SECONDS,
            is_for_places=True,
        )

    async def find(self, name: EntryName, *, ahead_bytes: int, reader: str) -> EntryBatch | None:
        """Returns an entry with those that earlier readers have asked for after it; None if there is no such entry.

        Args:
            name: of the entry.
            ahead_bytes: how many bytes of others there may be.
            reader: a name for whoever is given them.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        if is_rewritten(name.cache):
            return await self._load((name,))
        trails = self._trails[name.namespaces]
        trails.note(name, reader=reader)
        names = (name, *trails.after(name, room_bytes=min(ahead_bytes, _MOST_AHEAD_BYTES)))
        # Something that was written makes another batch. One entry alone is kept by the store.
        batch = await (
            self._load(names)
            if len(names) == 1
            else self._batches.get((names, self._writes), load=partial(self._load, names))
        )
        if batch is not None and batch.first.content is not None:
            trails.note_stored(name, size_bytes=len(batch.first.content))
            if batch.last != name:
                trails.note_sent(batch.last, reader=reader)
        return batch

    def note_write(self, name: EntryName, *, size_bytes: int) -> None:
        """Notes that an entry was written."""
        self._writes += 1
        self._trails[name.namespaces].note_stored(name, size_bytes=size_bytes)

    def note_removal(self) -> None:
        """Notes that entries were removed."""
        self._writes += 1

    async def _load(self, names: Sequence[EntryName]) -> EntryBatch | None:
        name, *following = names
        first = await self._find(name)
        if first is None:
            return None
        # At once where they have to be looked for; a task for each that is in memory takes longer than to find it.
        if absent := [each for each in following if not self._is_fresh(each)]:
            await asyncio.gather(*map(self._find, absent))
        ahead = _fitting([await self._find(each) for each in following], room_bytes=_MOST_AHEAD_BYTES)
        return EntryBatch(
            first=first,
            ahead=Counter(each.entry.cache for each in ahead),
            last=names[-1],
            answer=b"".join(each.answer for each in (first, *ahead)),
            size_bytes=sum(len(each.content or b"") for each in (first, *ahead)),
        )

    async def _find(self, name: EntryName) -> CheckedEntry | None:
        return await self._store.find(name.cache, name.key, namespaces=name.namespaces)

    def _is_fresh(self, name: EntryName) -> bool:
        return self._store.is_fresh(name.cache, name.key, namespaces=name.namespaces)


def _fitting(found: Sequence[CheckedEntry | None], *, room_bytes: int) -> list[CheckedEntry]:
    """Those that are still there and small. They may have grown since they were asked for."""
    fitting = []
    for each in found:
        if each is not None and each.content is not None and len(each.content) <= room_bytes:
            room_bytes -= len(each.content)
            fitting.append(each)
    return fitting
