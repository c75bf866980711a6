"""Fetches the sources of artifacts, which people look at."""

from __future__ import annotations

from compilefarm.cli.farm import TIMEOUT_SECONDS
from compilefarm.client.blobs import fetch
from compilefarm.client.clock import Budget, SystemClock
from compilefarm.client.connection import Connection
from compilefarm.loader.sources import check_size, read_sources
from compilefarm.v1.manifest_pb2 import Blob, Sources


def fetch_sources(blob: Blob, farm: Connection) -> Sources:
    """Returns the sources of an artifact.

    Raises:
        CorruptArtifact: there is something else in their place, or too much of it.
        NotStored: they are gone.
    """
    check_size(blob)
    stored = fetch([blob], connection=farm, budget=Budget(TIMEOUT_SECONDS, clock=SystemClock()))[blob.digest]
    return read_sources(blob, stored)
