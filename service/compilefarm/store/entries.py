"""Cache entries: what torch keeps in its own caches, by cache and key, in a backend of their own.

Unlike an artifact an entry may be written anew: torch does so, and the last writer wins.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import IO

from compilefarm.core.cache_entries import MOST_LISTED, is_named_by_content, is_rewritten, word_of_cache
from compilefarm.core.errors import DigestMismatch, NotStored, StoreFull, StoreUnavailable
from compilefarm.store.cache import Cache
from compilefarm.store.checked_entries import CheckedEntries, CheckedEntry, check_entry_file, read_written
from compilefarm.store.completing import completed
from compilefarm.store.counting import CountingBackend
from compilefarm.store.entry_collector import CollectedEntries, EntryCollector, written_sizes
from compilefarm.store.entry_records import (
    ENTRIES,
    LONGEST_END_BYTES,
    entry_path,
    find_identity,
    is_in_namespaces,
    parse_end,
    trailer_of,
    written_namespace,
)
from compilefarm.store.files import InFile, InMemory, Readable, StagedBlob
from compilefarm.store.limited import KEPT_SHARE, MOST_SHARE
from compilefarm.store.packages import PackageStore
from compilefarm.store.records import DamagedRecord
from compilefarm.store.shares import share_of
from compilefarm.store.staging import staging
from compilefarm.store.uses import Uses, is_within
from compilefarm.v1.cache_service_pb2 import CacheEntry, TorchCache

# Entries whose lifetime is over are looked for that often.
SWEEP_SECONDS = 3600.0
# Entries that are compared with their digest at a time: a gigabyte takes a thread for seconds.
_CHECKED_AT_ONCE = 3
# Writers of one name at a time: a later one may come between each step of an earlier one.
_MOST_TRIALS = 3
# What was read so lately is not looked at again: many pods ask for the same entries at once, and keep for as long what
# comes ahead.
FRESH_SECONDS = 30.0
_FRESH_BYTES = 64 * 1024 * 1024
# Of a description, in memory.
_DESCRIPTION_BYTES = 1024
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryUsage:
    """How much is stored.

    Attributes:
        entries: how many entries.
        size_bytes: their size.
        evicted: how many went since the service started, for room or of age.
        damaged: how many were found damaged since then, and removed.
    """

    entries: int
    size_bytes: int
    evicted: int
    damaged: int


class EntryStore:
    """Cache entries in a backend.

    Attributes:
        packages: packages of Dynamo, which take of the same room.

    Args:
        backend: where they lie; it counts ENTRIES.
        uses: when they were used.
        collector: removes some.
        size_limit_bytes: of all together.
    """

    def __init__(
        self, backend: CountingBackend, *, uses: Uses, collector: EntryCollector, size_limit_bytes: int
    ) -> None:
        self._backend = backend
        self._uses = uses
        self._collector = collector
        self._size_limit_bytes = size_limit_bytes
        self._checking = asyncio.Semaphore(_CHECKED_AT_ONCE)
        self._checked = CheckedEntries()
        self._fresh: Cache[str, CheckedEntry] = Cache(
            limit_bytes=_FRESH_BYTES,
            size_of=lambda checked: _DESCRIPTION_BYTES + checked.size_bytes,
            kept_seconds=FRESH_SECONDS,
            now=uses.now,
            is_for_places=True,
        )
        self._collecting = asyncio.Lock()
        self._swept_seconds = 0.0
        self._evicted = 0
        self._damaged = 0
        self.packages = PackageStore(backend, uses=uses, reserve=self.reserve)

    @property
    def size_limit_bytes(self) -> int:
        """What all entries together may have."""
        return self._size_limit_bytes

    @asynccontextmanager
    async def reading(
        self, cache: TorchCache.ValueType, key: str, *, namespaces: Sequence[str]
    ) -> AsyncIterator[tuple[CacheEntry, Readable]]:
        """Opens an entry, checked against its digest: that of the first namespace that has one.

        Raises:
            NotStored: none has one that is whole.
            StoreUnavailable: the store cannot be read.
        """
        word = word_of_cache(cache)
        for namespace, path in zip(namespaces, _paths_of(word, key, namespaces=namespaces), strict=True):
            found = await self._find(path, CacheEntry(cache=cache, key=key, namespace=namespace))
            if found is not None:
                entry, content = found
                try:
                    await self._uses.note(path, written_seconds=entry.written_seconds)
                    yield found
                finally:
                    content.close()
                return
        raise NotStored(f"cache {word} has no entry {key}")

    async def find(self, cache: TorchCache.ValueType, key: str, *, namespaces: Sequence[str]) -> CheckedEntry | None:
        """Returns an entry that matches its digest, with its bytes if these are few: that of the first namespace that
        has one. What another service has written or removed is seen FRESH_SECONDS later at the latest, and at once
        in a cache that is rewritten.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        for namespace, path in zip(
            namespaces, _paths_of(word_of_cache(cache), key, namespaces=namespaces), strict=True
        ):
            wanted = CacheEntry(cache=cache, key=key, namespace=namespace)
            load = partial(self._load, path, wanted)
            found = await (load() if is_rewritten(cache) else self._fresh.get(path, load=load))
            if found is not None:
                await self._uses.note(path, written_seconds=found.entry.written_seconds)
                return found
        return None

    def is_fresh(self, cache: TorchCache.ValueType, key: str, *, namespaces: Sequence[str]) -> bool:
        """Returns whether `find` need not look for an entry."""
        return self._fresh.is_fresh(entry_path(word_of_cache(cache), key, namespace=namespaces[0]))

    async def remove(self, cache: TorchCache.ValueType, keys: Iterable[str], *, namespace: str) -> None:
        """Removes entries of a namespace, if they are there.

        Raises:
            InvalidRequest: there is no such cache.
            StoreUnavailable: the store cannot be written.
        """
        word = word_of_cache(cache)
        for key in keys:
            path = entry_path(word, key, namespace=namespace)
            await self._backend.delete(path)
            self._fresh.drop(path)

    async def find_missing(
        self, cache: TorchCache.ValueType, keys: Sequence[str], *, namespaces: Sequence[str]
    ) -> list[str]:
        """Returns those of some keys of which none of the namespaces has an entry; the others count as used.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        word = word_of_cache(cache)
        return [key for key in keys if not await self._use_one_of(_paths_of(word, key, namespaces=namespaces))]

    async def list_descriptions(
        self, cache: TorchCache.ValueType, *, key_prefix: str, namespaces: Sequence[str]
    ) -> list[CacheEntry]:
        """Returns the descriptions of entries of these namespaces whose keys begin so, those written last at the end.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        folder = f"{ENTRIES}/{word_of_cache(cache)}"
        entries = [await self._find_description(path) for path in await self._latest(folder, namespaces=namespaces)]
        found = [entry for entry in entries if entry is not None and entry.key.startswith(key_prefix)]
        return sorted(found, key=lambda entry: entry.written_seconds)

    def staging(self, digest: str) -> AbstractAsyncContextManager[StagedBlob]:
        """Takes the bytes of an entry. Nothing is left of them when the context ends, but for what was put.

        Raises:
            InvalidRequest: `digest` is not written as a digest.
            StoreUnavailable: they cannot be written.
        """
        return staging(self._backend, digest=digest)

    def check_can_hold(self, size_bytes: int) -> None:
        """Passes if room for so many bytes can be made.

        Raises:
            StoreFull: they are more than all entries together may have.
        """
        if size_bytes > self._size_limit_bytes:
            raise StoreFull(
                f"caches have no room for {size_bytes} bytes: all entries together may have "
                f"{self._size_limit_bytes}; have --cache-size-limit raised"
            )

    async def reserve(self, coming: Mapping[str, int], *, namespace: str) -> None:
        """Passes if what is on its way may be put; makes room for it. A namespace that has no more than its share, with
        what is on its way, loses nothing, and has room whatever others have on theirs.

        Args:
            coming: how many bytes, by namespace.
            namespace: of who asks.

        Raises:
            StoreFull: there is none.
            StoreUnavailable: no room can be made.
        """
        size_bytes = sum(coming.values())
        if self._wants_room(size_bytes):
            await self._make_room(coming)
        # What is on its way cannot go. It ends with the next piece of it that has no room.
        most = 1.0 if self._has_more_than_share(namespace, coming=coming) else MOST_SHARE
        if self._backend.size_bytes + size_bytes > most * self._size_limit_bytes:
            raise StoreFull(
                f"caches have no room for the {size_bytes} bytes that are on their way: all entries together may have "
                f"{self._size_limit_bytes}, and each namespace keeps its share of them; have --cache-size-limit raised"
            )

    async def put(self, entry: CacheEntry, blob: StagedBlob) -> None:
        """Stores an entry, in place of another of that name.

        Args:
            entry: its description, with the namespace.
            blob: its bytes, of which all have come.

        Raises:
            DigestMismatch: they are not those that the description says.
            StoreUnavailable: the store cannot be written.
        """
        actual = blob.digest
        if (actual, blob.size_bytes) != (entry.digest, entry.size_bytes):
            raise DigestMismatch(
                f"{blob.size_bytes} bytes came with digest {actual}, and {entry.size_bytes} with {entry.digest} were "
                "announced: damaged on the way; send them again"
            )
        entry.written_seconds = self._uses.now()
        await blob.append(trailer_of(entry))
        # Whoever compiled it writes it, and many others ask for it then.
        written = None if is_named_by_content(entry.cache) else await asyncio.to_thread(read_written, blob.path, entry)
        await self._replace(entry, blob, written=written)

    def usage(self) -> EntryUsage:
        """Returns how much is stored."""
        count = self._backend.count_of(ENTRIES)
        return EntryUsage(
            entries=count.objects, size_bytes=count.size_bytes, evicted=self._evicted, damaged=self._damaged
        )

    async def _latest(self, folder: str, *, namespaces: Sequence[str]) -> list[str]:
        """The paths of those entries in a folder that were written last, the oldest first."""
        latest: list[tuple[float, str]] = []
        # One by one as they come: there may be hundreds of thousands, for each of many callers at a time.
        async for stored in self._backend.objects(folder):
            # Storages refuse to read the end of what is empty, which is no entry.
            if stored.size_bytes and is_in_namespaces(stored.path, namespaces):
                heapq.heappush(latest, (stored.modified_seconds, stored.path))
                # Each costs opening a file, or asking a bucket for one.
                if len(latest) > MOST_LISTED:
                    heapq.heappop(latest)
        return [path for _, path in sorted(latest)]

    async def _use_one_of(self, paths: Iterable[str]) -> bool:
        for path in paths:
            stored = await self._backend.find_object(path)
            if stored is not None:
                await self._uses.note(path, written_seconds=stored.modified_seconds)
                return True
        return False

    async def _find_description(self, path: str) -> CacheEntry | None:
        """The description of an entry, whose bytes are looked at when they are read."""
        # Its end alone: a bucket would be asked for all bytes of all entries.
        end = await self._backend.find_end(path, size_bytes=LONGEST_END_BYTES)
        if end is None:
            return None
        try:
            return parse_end(end)[0]
        except DamagedRecord as damage:
            await self._remove_damaged(path, damage)
        return None

    async def _find(self, path: str, wanted: CacheEntry) -> tuple[CacheEntry, InFile | InMemory] | None:
        opened = await self._open(path, wanted)
        if opened is None:
            return None
        checked, file = opened
        entry = CacheEntry()
        # The caller may change it.
        entry.CopyFrom(checked.entry)
        if checked.content is None:
            return entry, InFile(file, size_bytes=entry.size_bytes)
        file.close()
        return entry, InMemory(checked.content)

    async def _load(self, path: str, wanted: CacheEntry) -> CheckedEntry | None:
        opened = await self._open(path, wanted)
        if opened is None:
            return None
        checked, file = opened
        file.close()
        return checked

    async def _open(self, path: str, wanted: CacheEntry) -> tuple[CheckedEntry, IO[bytes]] | None:
        file = await self._backend.open(path)
        if file is None:
            return None
        try:
            checked = await self._check(file)
            if _names(checked.entry) != _names(wanted):
                raise DamagedRecord(f"it is the entry {checked.entry.key[:100]!r}")
        except DamagedRecord as damage:
            file.close()
            await self._remove_damaged(path, damage)
            return None
        except BaseException:
            file.close()
            raise
        return checked, file

    async def _check(self, file: IO[bytes]) -> CheckedEntry:
        # Once for each: who asks for a large one again and again would keep others from theirs.
        identity = find_identity(file)
        checked = None if identity is None else self._checked.find(identity)
        if checked is None:
            async with self._checking:
                checked = await completed(asyncio.ensure_future(asyncio.to_thread(check_entry_file, file)))
            if identity is not None:
                self._checked.add(identity, checked)
        return checked

    async def _remove_damaged(self, path: str, damage: DamagedRecord) -> None:
        _logger.warning("%s in the caches at %s is served no more: %s", path, self._backend.location, damage)
        self._damaged += 1
        try:
            await self._backend.delete(path)
        except StoreUnavailable as error:
            # It is a miss in a store that is read-only, too.
            _logger.warning("it stays there: %s", error)

    async def _replace(self, entry: CacheEntry, blob: StagedBlob, *, written: CheckedEntry | None) -> None:
        path = entry_path(word_of_cache(entry.cache), entry.key, namespace=entry.namespace)
        for _ in range(_MOST_TRIALS):
            if await self._backend.create_from(path, file=blob.path):
                self._fresh.drop(path)
                if written is not None:
                    self._fresh.keep(path, written)
                return
            # What many write would be gone again and again, for a moment each time.
            if is_named_by_content(entry.cache) and await self._is_whole(path, entry):
                await self._uses.note(path)
                return
            await self._backend.delete(path)

    async def _is_whole(self, path: str, entry: CacheEntry) -> bool:
        found = await self._find(path, entry)
        if found is None:
            return False
        found[1].close()
        return True

    def _is_above(self, further_bytes: int) -> bool:
        return self._backend.size_bytes + further_bytes > self._size_limit_bytes

    def _wants_room(self, size_bytes: int) -> bool:
        is_swept = is_within(SWEEP_SECONDS, since_seconds=self._swept_seconds, now_seconds=self._uses.now())
        return self._is_above(size_bytes) or not is_swept

    def _has_more_than_share(self, namespace: str, *, coming: Mapping[str, int]) -> bool:
        sizes = self._collector.sizes.copy()
        sizes.update(written_sizes(coming))
        return sizes[written_namespace(namespace)] > share_of(sizes, limit_bytes=self._size_limit_bytes)

    async def _make_room(self, coming: Mapping[str, int]) -> None:
        async with self._collecting:
            if not self._wants_room(sum(coming.values())):
                # Another has had it made meanwhile.
                return
            limit_bytes, size_bytes = float(self._size_limit_bytes), sum(coming.values())
            if self._is_above(size_bytes):
                # Less than fits, so that not every piece of an entry has to make room.
                limit_bytes = KEPT_SHARE * (limit_bytes - size_bytes) + size_bytes
            collected = await self._collector.collect(limit_bytes=limit_bytes, coming=coming)
            self._swept_seconds = self._uses.now()
            self._note(collected)

    def _note(self, collected: CollectedEntries) -> None:
        if collected.entries:
            self._evicted += collected.entries
            _logger.info(
                "removed %d cache entries with %d bytes; %d bytes are left",
                *(collected.entries, collected.freed_bytes, collected.size_bytes),
            )


def _paths_of(word: str, key: str, *, namespaces: Iterable[str]) -> list[str]:
    return [entry_path(word, key, namespace=namespace) for namespace in namespaces]


def _names(entry: CacheEntry) -> tuple[int, str, str]:
    return entry.cache, entry.key, entry.namespace
