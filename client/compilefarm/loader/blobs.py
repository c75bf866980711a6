"""Unpacks and checks the content of blobs."""

from __future__ import annotations

import sys
import zlib

from compilefarm.core.digests import digest_of
from compilefarm.core.errors import CorruptArtifact
from compilefarm.v1.manifest_pb2 import ENCODING_IDENTITY, ENCODING_ZLIB, Blob


def unpack(blob: Blob, stored: bytes) -> bytes:
    """The content of a blob, once its bytes are known to be the ones that the manifest means.

    Raises:
        CorruptArtifact: they are not, or they hold more or less than was said.
    """
    if len(stored) != blob.size_bytes or digest_of(stored) != blob.digest:
        raise CorruptArtifact(f"blob {blob.digest} holds other bytes than its digest says")
    if blob.encoding == ENCODING_IDENTITY:
        return stored
    if blob.encoding != ENCODING_ZLIB:
        raise CorruptArtifact(f"blob {blob.digest} has an encoding that this release does not know: {blob.encoding}")
    # To zlib a bound of zero is none, and it counts no further than memory has addresses.
    if not 0 <= blob.content_size_bytes < sys.maxsize:
        raise CorruptArtifact(f"blob {blob.digest} is said to hold {blob.content_size_bytes} bytes")
    decompressor = zlib.decompressobj()
    try:
        # One byte more than expected is enough to notice; a bomb gets no further.
        content = decompressor.decompress(stored, blob.content_size_bytes + 1)
    except zlib.error as error:
        raise CorruptArtifact(f"blob {blob.digest} cannot be unpacked: {error}") from error
    if len(content) != blob.content_size_bytes or not decompressor.eof:
        raise CorruptArtifact(f"blob {blob.digest} does not hold the {blob.content_size_bytes} bytes that were said")
    return content
