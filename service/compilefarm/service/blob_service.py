"""compilefarm.v1.BlobService on the wire."""

from __future__ import annotations

from collections.abc import AsyncIterator

from compilefarm.core.chunks import DOWNLOAD_CHUNK_BYTES, cut
from compilefarm.core.digests import check_digest
from compilefarm.core.errors import InvalidRequest, OutOfRange
from compilefarm.service.counters import Counters
from compilefarm.service.grpc_types import Context
from compilefarm.service.uploads import Upload
from compilefarm.store.artifact_store import ArtifactStore
from compilefarm.v1 import blob_service_pb2 as wire
from compilefarm.v1.blob_service_pb2_grpc import BlobServiceServicer

MAX_DIGESTS = 1000


class BlobService(BlobServiceServicer):
    """Adapts a store to the wire, and counts what passes."""

    def __init__(self, store: ArtifactStore, *, counters: Counters, max_blob_bytes: int) -> None:
        self._store = store
        self._counters = counters
        self._max_blob_bytes = max_blob_bytes

    async def FindMissing(self, request: wire.FindMissingRequest, _context: Context) -> wire.FindMissingResponse:
        if len(request.digests) > MAX_DIGESTS:
            raise InvalidRequest(f"{len(request.digests)} digests in one request: at most {MAX_DIGESTS} are allowed")
        digests = [check_digest(digest) for digest in request.digests]
        return wire.FindMissingResponse(digests=await self._store.find_missing(digests))

    async def Read(self, request: wire.ReadRequest, _context: Context) -> AsyncIterator[wire.ReadResponse]:
        content = await self._store.get_blob(check_digest(request.digest))
        if not 0 <= request.offset_bytes <= len(content):
            raise OutOfRange(f"blob {request.digest} has {len(content)} bytes, so none begin at {request.offset_bytes}")
        for chunk in cut(content, chunk_bytes=DOWNLOAD_CHUNK_BYTES, offset_bytes=request.offset_bytes):
            yield wire.ReadResponse(chunk=bytes(chunk))
            self._counters.bytes_sent += len(chunk)

    async def Write(self, request_iterator: AsyncIterator[wire.WriteRequest], _context: Context) -> wire.WriteResponse:
        upload: Upload | None = None
        async for piece in request_iterator:
            if upload is None:
                upload = Upload(piece.digest, max_bytes=self._max_blob_bytes)
            upload.add(piece.chunk, offset_bytes=piece.offset_bytes)
            self._counters.bytes_received += len(piece.chunk)
        if upload is None:
            raise InvalidRequest("nothing was sent: the first piece names the digest of the blob")
        await self._store.put_blob(upload.content(), digest=upload.digest)
        return wire.WriteResponse(size_bytes=upload.size_bytes)
