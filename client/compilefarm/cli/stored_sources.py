"""Fetches the sources of artifacts, which people look at. Whoever has taken over a child of a worker can store anything
in their place.
"""

from __future__ import annotations

from google.protobuf.message import DecodeError

from compilefarm.cli.farm import TIMEOUT_SECONDS
from compilefarm.client.blobs import fetch
from compilefarm.client.clock import Budget, SystemClock
from compilefarm.client.connection import Connection
from compilefarm.core.errors import CorruptArtifact
from compilefarm.loader.blobs import unpack
from compilefarm.v1.manifest_pb2 import Blob, Sources

# Of one artifact, unpacked. Those of models with thousands of kernels have some ten megabytes.
MOST_BYTES = 256 * 1024 * 1024


def fetch_sources(blob: Blob, farm: Connection) -> Sources:
    """Returns the sources of an artifact.

    Raises:
        CorruptArtifact: there is something else in their place, or too much of it.
        NotStored: they are gone.
    """
    if max(blob.size_bytes, blob.content_size_bytes) > MOST_BYTES:
        raise CorruptArtifact(
            f"the sources of an artifact have more than {MOST_BYTES} bytes, the most that are fetched"
        )
    stored = fetch([blob], connection=farm, budget=Budget(TIMEOUT_SECONDS, clock=SystemClock()))[blob.digest]
    try:
        return Sources.FromString(unpack(blob, stored))
    except DecodeError as error:
        raise CorruptArtifact(f"the sources of an artifact cannot be read: {error}") from error
