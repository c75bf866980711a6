"""Receives uploads of blobs and cache entries into files, within the limits of their callers."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from compilefarm.core.errors import InvalidRequest
from compilefarm.service.allowances import Add, Allowance
from compilefarm.service.callers import Caller
from compilefarm.service.counters import Counters
from compilefarm.service.fair_semaphore import FairSemaphore
from compilefarm.service.quotas import Quotas
from compilefarm.store.counting import counted_bytes
from compilefarm.store.files import StagedBlob

MAX_CHUNK_BYTES = 1024 * 1024
# Of all pieces but the last: each costs a turn of the event loop and of a thread.
MIN_CHUNK_BYTES = 4 * 1024


class Staging(Protocol):
    """What a store has for uploads."""

    def staging(self, digest: str) -> AbstractAsyncContextManager[StagedBlob]:
        """Opens a file for the pieces of a blob that is going to be put."""

    async def reserve(self, coming: Mapping[str, int], *, namespace: str) -> None:
        """Passes if what is on its way may be put.

        Args:
            coming: how many bytes, by the namespace of who sends them.
            namespace: of who asks.

        Raises:
            StoreFull: there is no room for them.
        """


class Uploads:
    """Receives uploads.

    Args:
        store: where they go.
        semaphore: places for those that send.
        allowance: for what is on its way.
        quotas: for what tenants have sent lately.
        counters: counts bytes.
        max_blob_bytes: size of one blob.
    """

    def __init__(
        self,
        store: Staging,
        *,
        semaphore: FairSemaphore,
        allowance: Allowance,
        quotas: Quotas,
        counters: Counters,
        max_blob_bytes: int,
    ) -> None:
        self._store = store
        self._semaphore = semaphore
        self._allowance = allowance
        self._quotas = quotas
        self._counters = counters
        self._max_blob_bytes = max_blob_bytes
        self._under_way: set[Upload] = set()

    @asynccontextmanager
    async def receiving(self, digest: str, *, caller: Caller) -> AsyncIterator[Upload]:
        """Takes the pieces of a blob. What is not put into the store goes when the context ends; until then it counts
        as on its way.

        Raises:
            InvalidRequest: `digest` is not written as a digest.
            Busy: too much of the caller is on its way.
            StoreUnavailable: it cannot be written.
        """
        async with self._semaphore.acquired(caller.account):
            with self._allowance.using(caller.account) as add:
                async with self._store.staging(digest) as blob:
                    upload = Upload(self, blob, digest=digest, add=add, caller=caller)
                    self._under_way.add(upload)
                    try:
                        yield upload
                    finally:
                        self._under_way.remove(upload)

    async def admit(self, size_bytes: int, *, of: Upload, add: Add) -> None:
        """Passes if so many more bytes of an upload may come.

        Raises:
            InvalidRequest: the blob is too large.
            Busy, StoreFull: there is no room.
        """
        if of.size_bytes + size_bytes > self._max_blob_bytes:
            raise InvalidRequest(f"blob {of.digest} is larger than the {self._max_blob_bytes} bytes that are allowed")
        add(size_bytes)
        before_bytes, of.size_bytes = of.size_bytes, of.size_bytes + size_bytes
        already_bytes = counted_bytes(before_bytes) if before_bytes else 0
        self._quotas.take(counted_bytes(of.size_bytes) - already_bytes, tenant=of.caller.tenant)
        self._counters.bytes_received += size_bytes
        await self._store.reserve(self._coming(), namespace=of.caller.namespace)

    def _coming(self) -> Mapping[str, int]:
        coming: Counter[str] = Counter()
        for upload in self._under_way:
            coming[upload.caller.namespace] += upload.size_bytes
        return coming


class Upload:
    """One upload, in pieces.

    Attributes:
        blob: what has come.
        digest: that it is said to have.
        caller: who sends it.
        size_bytes: of the pieces that were admitted.
    """

    def __init__(self, uploads: Uploads, blob: StagedBlob, *, digest: str, add: Add, caller: Caller) -> None:
        self._uploads = uploads
        self.blob = blob
        self.digest = digest
        self.caller = caller
        self.size_bytes = 0
        self._add = add
        self._is_last = False

    async def add(self, chunk: bytes, *, offset_bytes: int) -> None:
        """Adds the next piece.

        Raises:
            InvalidRequest: it is not the next piece, too much, or comes after one that was too small.
            Busy, StoreFull: there is no room for it.
        """
        if offset_bytes != self.blob.size_bytes:
            raise InvalidRequest(
                f"a piece of blob {self.digest} begins at byte {offset_bytes}, but {self.blob.size_bytes} bytes came "
                "before"
            )
        if len(chunk) > MAX_CHUNK_BYTES:
            raise InvalidRequest(f"a piece of {len(chunk)} bytes is too large: at most {MAX_CHUNK_BYTES} are allowed")
        if self._is_last:
            raise InvalidRequest(f"only the last piece of a blob may have less than {MIN_CHUNK_BYTES} bytes")
        self._is_last = len(chunk) < MIN_CHUNK_BYTES
        await self._uploads.admit(len(chunk), of=self, add=self._add)
        await self.blob.write(chunk)
