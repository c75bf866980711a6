"""Uploads the tensors that graphs hold, and downloads the blobs of artifacts."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from compilefarm.client.clock import Budget
from compilefarm.client.connection import Connection
from compilefarm.client.silence import Silence
from compilefarm.core.chunks import UPLOAD_CHUNK_BYTES, cut
from compilefarm.core.digests import digest_of
from compilefarm.core.errors import CorruptArtifact, Silent, Unreachable
from compilefarm.v1.blob_service_pb2 import FindMissingRequest, ReadRequest, ReadResponse, WriteRequest
from compilefarm.v1.manifest_pb2 import Blob

# blob_service.proto: FindMissingRequest.digests.
_DIGESTS_PER_QUESTION = 1000
# Reads that are under way at a time. gRPC's own threads receive the beginning of each, so the small blobs that most
# artifacts consist of are here when their turn comes; it takes no threads of ours.
_READS_AHEAD = 8
_BREAKS_PER_BLOB = 2


class _Read(Protocol):
    def __iter__(self) -> Iterator[ReadResponse]: ...

    def cancel(self) -> object: ...


def send_missing(blobs: Mapping[str, bytes], *, connection: Connection, budget: Budget) -> int:
    """Uploads the blobs that the farm does not have.

    Args:
        blobs: content by digest.

    Returns:
        The number of bytes that were sent.
    """
    missing = _find_missing(sorted(blobs), connection=connection, budget=budget)
    for digest in missing:
        _send(digest, blobs[digest], connection=connection, budget=budget)
    return sum(len(blobs[digest]) for digest in missing)


def fetch(blobs: Sequence[Blob], *, connection: Connection, budget: Budget) -> dict[str, bytes]:
    """Downloads blobs, and compares their bytes with their digests.

    Returns:
        Stored bytes by digest.

    Raises:
        CorruptArtifact: the bytes of a blob are not those of its digest.
        NotStored: a blob is gone.
    """
    wanted = deque({blob.digest: blob for blob in blobs}.values())
    under_way: deque[tuple[Blob, _Read]] = deque()
    contents: dict[str, bytes] = {}
    try:
        while wanted or under_way:
            while wanted and len(under_way) < _READS_AHEAD:
                blob = wanted.popleft()
                under_way.append((blob, _start_read(blob, 0, connection=connection, budget=budget)))
            blob, read = under_way[0]
            contents[blob.digest] = _receive(blob, read, connection=connection, budget=budget)
            under_way.popleft()
    finally:
        for _, read in under_way:
            read.cancel()
    return contents


def _send(digest: str, content: bytes, *, connection: Connection, budget: Budget) -> None:
    stubs, silence = connection.stubs(within_seconds=budget.left()), Silence()
    # A piece is taken when there is room for it, so that too tells that the other end lives.
    pieces = silence.noting_activity(_pieces(digest, content))
    with connection.calls():
        call = stubs.blobs.Write.future(pieces, timeout=budget.timeout())
        with silence.watching(call):
            call.result()


def _find_missing(digests: Sequence[str], *, connection: Connection, budget: Budget) -> list[str]:
    missing: list[str] = []
    for start in range(0, len(digests), _DIGESTS_PER_QUESTION):
        stubs = connection.stubs(within_seconds=budget.left())
        question = FindMissingRequest(digests=digests[start : start + _DIGESTS_PER_QUESTION])
        with connection.calls():
            call = stubs.blobs.FindMissing.future(question, timeout=budget.timeout())
            with Silence().watching(call):
                told = set(call.result().digests)
        # Whoever answers may name others, and one of them any number of times.
        missing += [digest for digest in question.digests if digest in told]
    return missing


def _pieces(digest: str, content: bytes) -> Iterator[WriteRequest]:
    offset_bytes = 0
    for piece in cut(content, chunk_bytes=UPLOAD_CHUNK_BYTES):
        yield WriteRequest(digest="" if offset_bytes else digest, offset_bytes=offset_bytes, chunk=bytes(piece))
        offset_bytes += len(piece)


def _start_read(blob: Blob, offset_bytes: int, *, connection: Connection, budget: Budget) -> _Read:
    request = ReadRequest(digest=blob.digest, offset_bytes=offset_bytes)
    return connection.stubs(within_seconds=budget.left()).blobs.Read(request, timeout=budget.timeout())


def _receive(blob: Blob, read: _Read, *, connection: Connection, budget: Budget) -> bytes:
    content = bytearray()
    breaks = 0
    while True:
        try:
            _append_chunks(content, read, blob=blob, connection=connection)
            break
        except Silent:
            # It would be silent again.
            raise
        except Unreachable:
            breaks += 1
            if breaks > _BREAKS_PER_BLOB:
                raise
        read = _start_read(blob, len(content), connection=connection, budget=budget)
    received = bytes(content)
    if digest_of(received) != blob.digest:
        raise CorruptArtifact(f"blob {blob.digest} came with other bytes than its digest says")
    return received


def _append_chunks(content: bytearray, read: _Read, *, blob: Blob, connection: Connection) -> None:
    silence = Silence()
    with connection.calls(), silence.watching(read):
        for response in silence.noting_activity(read):
            content += response.chunk
            if len(content) > blob.size_bytes:
                raise CorruptArtifact(f"blob {blob.digest} has more than the {blob.size_bytes} bytes announced")
