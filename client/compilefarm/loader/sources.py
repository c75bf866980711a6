"""Reads the sources of an artifact. Whoever has taken over a child of a worker can store anything in their place."""

from __future__ import annotations

from itertools import islice

from google.protobuf.message import DecodeError

from compilefarm.core.errors import CorruptArtifact
from compilefarm.core.wire_fields import fields_of
from compilefarm.loader.blobs import unpack
from compilefarm.v1.manifest_pb2 import Blob, Sources

# Of one artifact, unpacked. Those of models with thousands of kernels have some ten megabytes.
MOST_BYTES = 256 * 1024 * 1024
# Those have a few files for each kernel. An empty one takes two bytes, none once they are packed, and 56 in memory.
MOST_FILES = 100_000


def check_size(blob: Blob) -> None:
    """Passes if sources are no more than what is read of them; to be called before they are fetched.

    Raises:
        CorruptArtifact: they are.
    """
    if max(blob.size_bytes, blob.content_size_bytes) > MOST_BYTES:
        raise CorruptArtifact(f"the sources of an artifact have more than {MOST_BYTES} bytes, the most that are read")


def read_sources(blob: Blob, stored: bytes) -> Sources:
    """The sources that stored bytes hold.

    Raises:
        CorruptArtifact: they hold something else, or too much of it.
    """
    check_size(blob)
    content = unpack(blob, stored)
    try:
        if next(islice(fields_of(content, 0, len(content)), MOST_FILES, None), None) is not None:
            raise CorruptArtifact(
                f"the sources of an artifact are more than {MOST_FILES} files, the most that are read"
            )
        return Sources.FromString(content)
    except DecodeError as error:
        raise CorruptArtifact(f"the sources of an artifact cannot be read: {error}") from error
