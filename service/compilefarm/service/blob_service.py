"""compilefarm.v1.BlobService on the wire."""

from __future__ import annotations

from collections.abc import AsyncIterator

from compilefarm.core.digests import check_digest
from compilefarm.core.errors import InvalidRequest, OutOfRange
from compilefarm.service.callers import current_caller
from compilefarm.service.counters import Counters
from compilefarm.service.fair_semaphore import FairSemaphore
from compilefarm.service.grpc_types import Context
from compilefarm.service.uploads import Uploads
from compilefarm.service.wanted import WantedBlobs
from compilefarm.store.artifact_store import ArtifactStore
from compilefarm.store.completing import entered
from compilefarm.store.files import pieces_of
from compilefarm.v1 import blob_service_pb2 as wire
from compilefarm.v1.blob_service_pb2_grpc import BlobServiceServicer

MAX_DIGESTS = 1000
# Requests that look for blobs at a time; each looks for many.
_LOOKING = 8
_LOOKING_OF_ACCOUNT = 1


class BlobService(BlobServiceServicer):
    """Adapts a store to the wire, and counts what passes.

    Args:
        store: where blobs lie.
        wanted: which of them may be sent.
        uploads: takes those that are sent.
        reads: places for those that read.
        counters: counts bytes.
    """

    def __init__(
        self,
        store: ArtifactStore,
        *,
        wanted: WantedBlobs,
        uploads: Uploads,
        reads: FairSemaphore,
        counters: Counters,
    ) -> None:
        self._store = store
        self._wanted = wanted
        self._uploads = uploads
        self._reads = reads
        self._counters = counters
        self._looking = FairSemaphore("looking for blobs", places=_LOOKING, account_places=_LOOKING_OF_ACCOUNT)

    async def FindMissing(self, request: wire.FindMissingRequest, _context: Context) -> wire.FindMissingResponse:
        if len(request.digests) > MAX_DIGESTS:
            raise InvalidRequest(f"{len(request.digests)} digests in one request: at most {MAX_DIGESTS} are allowed")
        caller = current_caller()
        async with self._looking.acquired(caller.account):
            # Not before it is the turn of the caller: for so many it takes as long as many calls.
            digests = [check_digest(digest) for digest in request.digests]
            missing = await self._store.find_missing(digests, namespace=caller.namespace)
            return wire.FindMissingResponse(digests=missing)

    async def Read(self, request: wire.ReadRequest, _context: Context) -> AsyncIterator[wire.ReadResponse]:
        digest, offset_bytes = check_digest(request.digest), request.offset_bytes
        async with self._reads.acquired(current_caller().account), entered(self._store.reading(digest)) as content:
            if not 0 <= offset_bytes <= content.size_bytes:
                raise OutOfRange(f"blob {digest} has {content.size_bytes} bytes, so none begin at {offset_bytes}")
            async for chunk in pieces_of(content, offset_bytes=offset_bytes):
                yield wire.ReadResponse(chunk=chunk)
                self._counters.bytes_sent += len(chunk)

    async def Write(self, request_iterator: AsyncIterator[wire.WriteRequest], _context: Context) -> wire.WriteResponse:
        first = await anext(request_iterator, None)
        if first is None:
            raise InvalidRequest("nothing was sent: the first piece names the digest of the blob")
        caller, digest = current_caller(), check_digest(first.digest)
        self._wanted.require_wanted(digest, account=caller.account)
        async with self._uploads.receiving(digest, caller=caller) as upload:
            await upload.add(first.chunk, offset_bytes=first.offset_bytes)
            async for piece in request_iterator:
                await upload.add(piece.chunk, offset_bytes=piece.offset_bytes)
            await self._store.put_staged(upload.blob, digest=digest, namespace=caller.namespace)
            return wire.WriteResponse(size_bytes=upload.blob.size_bytes)
