"""compilefarm.v1.CacheService on the wire."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

from compilefarm.core.cache_entries import (
    ENTRIES_PER_ANSWER,
    KEYS_PER_QUESTION,
    check_entry,
    check_key,
    word_of_cache,
)
from compilefarm.core.errors import InvalidRequest, NoCaches, NotStored, ReadOnlyFarm
from compilefarm.service.allowances import Allowance
from compilefarm.service.callers import Caller, current_caller
from compilefarm.service.counters import Counters
from compilefarm.service.entry_batches import EntryBatch, EntryBatches
from compilefarm.service.fair_semaphore import FairSemaphore
from compilefarm.service.grpc_types import Context
from compilefarm.service.trails import EntryName
from compilefarm.service.uploads import Upload, Uploads
from compilefarm.store.checked_entries import answer_of
from compilefarm.store.entries import EntryStore
from compilefarm.store.files import pieces_of
from compilefarm.v1 import cache_service_pb2 as wire
from compilefarm.v1.cache_service_pb2_grpc import CacheServiceServicer

log = logging.getLogger(__name__)


class CacheCounts:
    """Counts since the service started, by cache and by outcome: hit, miss, write, or ahead, for an entry that was sent
    with another one."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str]] = Counter()

    def note(self, cache: wire.TorchCache.ValueType, outcome: str, count: int = 1) -> None:
        """Counts requests."""
        self.note_word(word_of_cache(cache), outcome, count)

    def note_word(self, word: str, outcome: str, count: int = 1) -> None:
        """Counts requests for what lies beside torch's caches."""
        self.requests[word, outcome] += count


class NoCacheService(CacheServiceServicer):
    """Refuses: this farm keeps no entries."""

    async def Get(self, _request: wire.GetRequest, _context: Context) -> AsyncIterator[wire.GetResponse]:
        raise _no_caches()
        yield

    async def FindEntry(self, _request: wire.FindEntryRequest, _context: Context) -> wire.FindEntryResponse:
        raise _no_caches()

    async def Put(self, _requests: AsyncIterator[wire.PutRequest], _context: Context) -> wire.PutResponse:
        raise _no_caches()

    async def ListEntries(
        self, _request: wire.ListEntriesRequest, _context: Context
    ) -> AsyncIterator[wire.ListEntriesResponse]:
        raise _no_caches()
        yield

    async def FindMissingEntries(
        self, _request: wire.FindMissingEntriesRequest, _context: Context
    ) -> wire.FindMissingEntriesResponse:
        raise _no_caches()

    async def RemoveEntries(self, _request: wire.RemoveEntriesRequest, _context: Context) -> wire.RemoveEntriesResponse:
        raise _no_caches()


class CacheService(CacheServiceServicer):
    """Adapts a store of cache entries to the wire, and counts what passes.

    Args:
        store: where entries lie.
        uploads: takes those that are sent.
        reads: places for those that read.
        answers: bytes of answers on their way.
        counters: counts bytes.
        counts: counts requests.
        max_entry_bytes: size of one entry.
        read_only: whether nothing is written.
    """

    def __init__(
        self,
        store: EntryStore,
        *,
        uploads: Uploads,
        reads: FairSemaphore,
        answers: Allowance,
        counters: Counters,
        counts: CacheCounts,
        max_entry_bytes: int,
        read_only: bool,
    ) -> None:
        self._store = store
        self._uploads = uploads
        self._reads = reads
        self._counters = counters
        self._counts = counts
        self._max_entry_bytes = max_entry_bytes
        self._read_only = read_only
        self._batches = EntryBatches(store)
        self._answers = answers

    async def FindEntry(self, request: wire.FindEntryRequest, context: Context) -> Any:
        # Serialized: protobuf takes a millisecond for a megabyte.
        word_of_cache(request.cache)
        caller, key = current_caller(), check_key(request.key)
        name = EntryName(cache=request.cache, key=key, namespaces=tuple(caller.namespaces))
        async with self._reads.acquired(caller.account):
            batch = await self._batches.find(name, ahead_bytes=request.ahead_bytes, reader=context.peer())
        self._counts.note(request.cache, "miss" if batch is None else "hit")
        return b"" if batch is None else self._answer_of(batch, account=caller.account)

    async def Get(self, request: wire.GetRequest, _context: Context) -> AsyncIterator[wire.GetResponse]:
        word_of_cache(request.cache)
        caller, key = current_caller(), check_key(request.key)
        async with self._reads.acquired(caller.account):
            try:
                async with self._store.reading(request.cache, key, namespaces=caller.namespaces) as (entry, content):
                    self._counts.note(request.cache, "hit")
                    yield wire.GetResponse(entry=_without_writer(entry))
                    async for chunk in pieces_of(content):
                        yield wire.GetResponse(chunk=chunk)
                        self._counters.bytes_sent += len(chunk)
            except NotStored:
                self._counts.note(request.cache, "miss")
                raise

    async def Put(self, request_iterator: AsyncIterator[wire.PutRequest], _context: Context) -> wire.PutResponse:
        self._require_writable()
        caller = current_caller()
        entry = self._read_entry(await anext(request_iterator, None), caller=caller)
        self._store.check_can_hold(entry.size_bytes)
        # Room is made for bytes when they come: nothing goes for what somebody only announces.
        await self._store.reserve({}, namespace=caller.namespace)
        async with self._uploads.receiving(entry.digest, caller=caller) as upload:
            async for piece in request_iterator:
                await _add(upload, piece, entry=entry)
            await self._store.put(entry, upload.blob)
        name = EntryName(cache=entry.cache, key=entry.key, namespaces=tuple(caller.namespaces))
        self._batches.note_write(name, size_bytes=entry.size_bytes)
        self._counts.note(entry.cache, "write")
        log.info("cache %s has entry %s of %s", word_of_cache(entry.cache), entry.key, caller.account)
        return wire.PutResponse()

    async def ListEntries(
        self, request: wire.ListEntriesRequest, _context: Context
    ) -> AsyncIterator[wire.ListEntriesResponse]:
        caller = current_caller()
        async with self._reads.acquired(caller.account):
            entries = await self._store.list_descriptions(
                request.cache, key_prefix=request.key_prefix, namespaces=caller.namespaces
            )
            # Within the place: who takes nothing of a list holds it in memory.
            for start in range(0, len(entries), ENTRIES_PER_ANSWER):
                part = entries[start : start + ENTRIES_PER_ANSWER]
                yield wire.ListEntriesResponse(entries=map(_without_writer, part))

    async def FindMissingEntries(
        self, request: wire.FindMissingEntriesRequest, _context: Context
    ) -> wire.FindMissingEntriesResponse:
        caller = current_caller()
        async with self._reads.acquired(caller.account):
            keys = _check_keys(request.keys)
            missing = await self._store.find_missing(request.cache, keys, namespaces=caller.namespaces)
        return wire.FindMissingEntriesResponse(keys=missing)

    async def RemoveEntries(self, request: wire.RemoveEntriesRequest, _context: Context) -> wire.RemoveEntriesResponse:
        self._require_writable()
        caller = current_caller()
        async with self._reads.acquired(caller.account):
            keys = _check_keys(request.keys)
            await self._store.remove(request.cache, keys, namespace=caller.namespace)
        self._batches.note_removal()
        return wire.RemoveEntriesResponse()

    def _answer_of(self, batch: EntryBatch, *, account: str) -> bytes:
        """A message with the bytes of entries, serialized. Where much is on its way to the caller, who may take nothing
        of it, it has to read them with Get, which waits until they are taken.
        """
        if not self._answers.leaves_half(account, batch.size_bytes):
            return answer_of(batch.first.entry, None)
        self._counters.bytes_sent += batch.size_bytes
        for cache, count in batch.ahead.items():
            self._counts.note(cache, "ahead", count)
        return batch.answer

    def _require_writable(self) -> None:
        if self._read_only:
            raise ReadOnlyFarm("this farm serves what is stored, and keeps nothing new (serve --read-only)")

    def _read_entry(self, first: wire.PutRequest | None, *, caller: Caller) -> wire.CacheEntry:
        if first is None or first.WhichOneof("piece") != "entry":
            raise InvalidRequest("the first piece describes the entry")
        entry = check_entry(first.entry, max_bytes=self._max_entry_bytes)
        entry.namespace, entry.writer = caller.namespace, caller.name
        return entry


def _check_keys(keys: Sequence[str]) -> list[str]:
    if len(keys) > KEYS_PER_QUESTION:
        raise InvalidRequest(f"{len(keys)} keys in one question: ask for at most {KEYS_PER_QUESTION}")
    return [check_key(key) for key in keys]


def _without_writer(entry: wire.CacheEntry) -> wire.CacheEntry:
    entry.ClearField("writer")
    return entry


async def _add(upload: Upload, piece: wire.PutRequest, *, entry: wire.CacheEntry) -> None:
    if piece.WhichOneof("piece") != "chunk":
        raise InvalidRequest("each piece but the first has bytes of the entry")
    if upload.blob.size_bytes + len(piece.chunk) > entry.size_bytes:
        raise InvalidRequest(f"more bytes came than the {entry.size_bytes} that were announced")
    await upload.add(piece.chunk, offset_bytes=upload.blob.size_bytes)


def _no_caches() -> NoCaches:
    return NoCaches("this farm keeps no entries of torch's caches: it has to `serve --cache-size-limit SIZE`")
