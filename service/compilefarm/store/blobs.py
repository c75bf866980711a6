"""Blobs: immutable bytes by their digest, which is checked whenever they go in and whenever they come out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from compilefarm.core.digests import digest_of
from compilefarm.core.errors import DigestMismatch, NotStored, StoreUnavailable
from compilefarm.store.backend import Backend
from compilefarm.store.layout import blob_path, quarantine_path
from compilefarm.v1.manifest_pb2 import Blob

_logger = logging.getLogger(__name__)


class BlobStore:
    """Blobs in a backend. One whose bytes no longer match its digest is moved aside and is then not there."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._corrupt_blobs = 0

    @property
    def corrupt_blobs(self) -> int:
        """How many blobs were found not to match their digest, and taken out, since the store was opened."""
        return self._corrupt_blobs

    async def get(self, digest: str) -> bytes:
        """The bytes of a blob.

        Raises:
            InvalidRequest: `digest` is not written as a digest.
            NotStored: there is no such blob, or its bytes no longer match.
            StoreUnavailable: the store cannot be read, or a corrupt blob cannot be taken out of it.
        """
        content = await self._backend.find(blob_path(digest))
        if content is None:
            raise NotStored(f"the store has no blob {digest}; send it, or compile again")
        if await _digest_of(content) != digest:
            await self._set_aside(digest)
            raise NotStored(f"blob {digest} was corrupt and is no longer served; send it, or compile again")
        return content

    async def put(self, content: bytes, *, digest: str) -> None:
        """Stores a blob. Where one of that digest and size is stored already, nothing is written.

        Raises:
            InvalidRequest: `digest` is not written as a digest.
            DigestMismatch: `content` has another digest.
            StoreUnavailable: the store cannot be written.
        """
        path = blob_path(digest)
        actual = await _digest_of(content)
        if actual != digest:
            raise DigestMismatch(f"bytes named {digest} have the digest {actual}: damaged on the way; send them again")
        size_bytes = await self._backend.find_size(path)
        if size_bytes == len(content):
            return
        if size_bytes is not None:
            await self._set_aside(digest)
        # If it is there by now, somebody else wrote the same bytes.
        await self._backend.create(path, content=content)

    async def find_missing(self, digests: Iterable[str]) -> list[str]:
        """Those of `digests` that are not stored, in their order, each once.

        Raises:
            InvalidRequest: one of them is not written as a digest.
            StoreUnavailable: the store cannot be read.
        """
        wanted = {digest: blob_path(digest) for digest in digests}
        sizes = await asyncio.gather(*(self._backend.find_size(path) for path in wanted.values()))
        return [digest for digest, size_bytes in zip(wanted, sizes, strict=True) if size_bytes is None]

    async def hold(self, blobs: Iterable[Blob]) -> bool:
        """Whether all of `blobs` are stored in their full size. Their bytes are not read.

        Raises:
            InvalidRequest: a digest is not written as one.
            StoreUnavailable: the store cannot be read.
        """
        wanted = list(blobs)
        sizes = await asyncio.gather(*(self._backend.find_size(blob_path(blob.digest)) for blob in wanted))
        return sizes == [blob.size_bytes for blob in wanted]

    async def _set_aside(self, digest: str) -> None:
        path, target = blob_path(digest), quarantine_path(digest)
        try:
            moved = await self._backend.move(path, target=target)
        except StoreUnavailable as error:
            _logger.error("blob %s is corrupt and could not be moved aside, so it is deleted: %s", digest, error)
            await self._backend.delete(path)
            self._corrupt_blobs += 1
            return
        if moved:
            _logger.error("blob %s is corrupt and was moved to %s", digest, target)
            self._corrupt_blobs += 1


async def _digest_of(content: bytes) -> str:
    # In a thread: hashing takes long enough to be felt by everybody else on the event loop, and needs no lock.
    return await asyncio.to_thread(digest_of, content)
