"""What an artifact is made of. The store and the loader read a manifest with the same eyes."""

from __future__ import annotations

from compilefarm.v1.manifest_pb2 import Blob, Manifest

# The layout of the artifacts that this release writes and reads (Manifest.format).
ARTIFACT_FORMAT = 1


def blobs_of(manifest: Manifest) -> list[Blob]:
    """The blobs that have to be at hand before the artifact can be loaded: the program, then its libraries."""
    return [manifest.program, *(library.blob for library in manifest.libraries)]
