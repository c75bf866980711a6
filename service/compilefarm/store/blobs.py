"""Blobs: immutable bytes by their digest, which is checked whenever they go in and whenever they come out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import IO, TypeVar

from compilefarm.core.digests import digest_of
from compilefarm.core.errors import DigestMismatch, NotStored
from compilefarm.store.backend import LARGEST_OBJECT_BYTES, Backend, StoredObject
from compilefarm.store.damage import Damage
from compilefarm.store.files import InFile, Readable, StagedBlob, digest_of_file
from compilefarm.store.layout import blob_path
from compilefarm.store.shared_files import SharedFiles
from compilefarm.store.staging import staging
from compilefarm.store.steps import STEP, in_steps
from compilefarm.store.uses import Uses
from compilefarm.v1.manifest_pb2 import Blob

T = TypeVar("T")
R = TypeVar("R")

# Large blobs: a gigabyte takes a thread for seconds, and asyncio has five at least, for all that touches a disk.
_CHECKED_AT_ONCE = 3


class BlobStore:
    """Blobs in a backend. A blob whose bytes do not match its digest is set aside, and then counts as missing.

    Args:
        backend: where they lie.
        uses: who relies on them.
        damage: where damaged ones go.
    """

    def __init__(self, backend: Backend, *, uses: Uses, damage: Damage) -> None:
        self._backend = backend
        self._uses = uses
        self._damage = damage
        self._files = SharedFiles(self._open, now=uses.now)
        self._checking = asyncio.Semaphore(_CHECKED_AT_ONCE)

    async def get(self, digest: str) -> bytes:
        """Returns the bytes of a blob of at most LARGEST_IN_MEMORY_BYTES.

        Raises:
            InvalidRequest: `digest` is not written as a digest.
            NotStored: there is no such blob, or its bytes no longer match.
            StoreUnavailable: the store cannot be read, or a corrupt blob cannot be taken out of it.
        """
        path = blob_path(digest)
        async with self._uses.holding(path):
            content = await self._backend.find(path)
        if content is None:
            raise _not_stored(digest)
        if await _digest_of(content) != digest:
            await self._set_aside(digest)
            raise _corrupt(digest)
        return content

    async def put(self, content: bytes, *, digest: str) -> None:
        """Stores a blob, unless one of that digest and size is stored already.

        Raises:
            InvalidRequest: `digest` is not written as a digest.
            DigestMismatch: `content` has another digest.
            StoreUnavailable: the store cannot be written.
        """
        path = blob_path(digest)
        actual = await _digest_of(content)
        if actual != digest:
            raise _mismatch(digest, actual)
        async with self._uses.holding(path):
            if await self.secure([Blob(digest=digest, size_bytes=len(content))]):
                return
            # If it is there by now, somebody else wrote the same bytes.
            await self._backend.create(path, content=content)
            await self._uses.note(path, written_seconds=self._uses.now())

    def reading(self, digest: str) -> AbstractAsyncContextManager[Readable]:
        """Opens a blob as a file, which concurrent readers share.

        Raises:
            As `get`.
        """
        return self._files.reading(digest)

    async def find_size(self, digest: str) -> int | None:
        """Returns the size of a blob in bytes, without reading it; None if there is none.

        Raises:
            InvalidRequest: `digest` is not written as a digest.
            StoreUnavailable: the store cannot be read.
        """
        stored = await self._backend.find_object(blob_path(digest))
        return None if stored is None else stored.size_bytes

    def staging(self, digest: str) -> AbstractAsyncContextManager[StagedBlob]:
        """Takes the pieces of a blob. Nothing is left of them when the context ends, but for what was put.

        Raises:
            InvalidRequest: `digest` is not written as a digest.
            StoreUnavailable: they cannot be written.
        """
        return staging(self._backend, digest=digest)

    async def put_staged(self, blob: StagedBlob, *, digest: str) -> None:
        """Stores the pieces that have arrived, like `put`.

        Raises:
            As `put`.
        """
        path, actual = blob_path(digest), blob.digest
        if actual != digest:
            raise _mismatch(digest, actual)
        async with self._uses.holding(path):
            if await self.secure([Blob(digest=digest, size_bytes=blob.size_bytes)]):
                return
            await self._backend.create_from(path, file=blob.path)
            await self._uses.note(path, written_seconds=self._uses.now())

    async def find_missing(self, digests: Iterable[str]) -> list[str]:
        """Returns those of `digests` that are not stored, in their order, each once.

        Raises:
            InvalidRequest: one of them is not written as a digest.
            StoreUnavailable: the store cannot be read.
        """
        wanted = {digest: blob_path(digest) for digest in digests}
        found = await few_at_a_time(self._rely_on, wanted.values())
        return [digest for digest, stored in zip(wanted, found, strict=True) if stored is None]

    async def are_complete(self, blobs: Iterable[Blob]) -> bool:
        """Returns whether all of `blobs` are stored in their full size. They are read only if a size is wrong.

        Raises:
            InvalidRequest: a digest is not written as one.
            StoreUnavailable: the store cannot be read.
        """
        wanted = list(blobs)
        found = await few_at_a_time(self._backend.find_object, [blob_path(blob.digest) for blob in wanted])
        return await self._fit(wanted, found)

    async def secure(self, blobs: Iterable[Blob]) -> bool:
        """Like `are_complete`, for blobs that a manifest is going to name: they also survive a power failure.

        Raises:
            InvalidRequest: a digest is not written as one.
            StoreUnavailable: the store cannot be read or written.
        """
        wanted = list(blobs)
        paths = [blob_path(blob.digest) for blob in wanted]
        complete = await self._fit(wanted, await few_at_a_time(self._rely_on, paths))
        if complete:
            await few_at_a_time(self._backend.settle, paths)
        return complete

    async def _open(self, digest: str) -> InFile:
        path = blob_path(digest)
        async with self._uses.holding(path):
            file = await self._backend.open(path)
        if file is None:
            raise _not_stored(digest)
        try:
            actual, size_bytes = await self._check(file)
            if actual != digest:
                await self._set_aside(digest)
                raise _corrupt(digest)
        except BaseException:
            file.close()
            raise
        return InFile(file, size_bytes=size_bytes)

    async def _check(self, file: IO[bytes]) -> tuple[str, int]:
        async with self._checking:
            return await asyncio.to_thread(digest_of_file, file, limit_bytes=LARGEST_OBJECT_BYTES)

    async def _rely_on(self, path: str) -> StoredObject | None:
        async with self._uses.holding(path):
            stored = await self._backend.find_object(path)
            if stored is not None:
                await self._uses.note(path, written_seconds=stored.modified_seconds)
            return stored

    async def _fit(self, wanted: Sequence[Blob], found: Sequence[StoredObject | None]) -> bool:
        for blob, stored in zip(wanted, found, strict=True):
            if stored is not None and stored.size_bytes != blob.size_bytes:
                await self._set_aside(blob.digest)
        return [stored and stored.size_bytes for stored in found] == [blob.size_bytes for blob in wanted]

    async def _set_aside(self, digest: str) -> None:
        async def examine(file: IO[bytes]) -> str:
            actual, size_bytes = await self._check(file)
            return "" if actual == digest else f"its {size_bytes} bytes have the digest {actual}"

        await self._damage.set_aside(blob_path(digest), examine=examine)


async def few_at_a_time(work: Callable[[T], Awaitable[R]], items: Iterable[T], *, turns: int = 32) -> list[R]:
    """Does some work for each of some items, a bounded number at a time; returns the results in order.

    All work has ended when the first error is raised.

    Args:
        work: done with each.
        items: of which there may be thousands.
        turns: how many are worked on at a time.
    """
    # No more tasks than turns: thousands at once would keep everybody else waiting.
    known = list(items)
    numbered = iter(enumerate(known))
    results: dict[int, R] = {}
    errors: dict[int, Exception] = {}
    # Work that waits for nothing keeps nobody waiting; all turns together do a step of it at a time.
    step = max(STEP // turns, 1)

    async def take_turns() -> None:
        async for number, item in in_steps(numbered, step=step):
            try:
                results[number] = await work(item)
            except Exception as error:  # noqa: BLE001 - raised below
                errors[number] = error

    await asyncio.gather(*(take_turns() for _ in range(min(turns, len(known)))))
    if errors:
        raise errors[min(errors)]
    return [results[number] for number in sorted(results)]


def _not_stored(digest: str) -> NotStored:
    return NotStored(f"the store has no blob {digest}; send it, or compile again")


def _corrupt(digest: str) -> NotStored:
    return NotStored(f"blob {digest} was corrupt and is no longer served; send it, or compile again")


def _mismatch(digest: str, actual: str) -> DigestMismatch:
    return DigestMismatch(f"bytes named {digest} have the digest {actual}: damaged on the way; send them again")


async def _digest_of(content: bytes) -> str:
    # In a thread: hashing takes long enough to be felt by everybody else on the event loop, and needs no lock.
    return await asyncio.to_thread(digest_of, content)
