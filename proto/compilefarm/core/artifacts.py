"""What an artifact is made of. The store and the loader read a manifest with the same eyes."""

from __future__ import annotations

from compilefarm.core.digests import digest_of
from compilefarm.core.errors import IncompatibleArtifact
from compilefarm.core.expressions import check_expression, holds
from compilefarm.v1.job_pb2 import PHASE_COMPILING, PHASE_TUNING, Job
from compilefarm.v1.manifest_pb2 import Blob, Manifest

# The layout of the artifacts that this release writes and reads (Manifest.format).
ARTIFACT_FORMAT = 1


def blobs_to_run(manifest: Manifest) -> list[Blob]:
    """The blobs that have to be at hand before the artifact can be loaded: the program, then its libraries."""
    return [manifest.program, *(library.blob for library in manifest.libraries)]


def blobs_of(manifest: Manifest) -> list[Blob]:
    """All blobs that the artifact consists of, those for people included."""
    return [*blobs_to_run(manifest), *([manifest.sources] if manifest.HasField("sources") else [])]


def digest_of_manifest(manifest: Manifest) -> str:
    """What tells a manifest from all others."""
    return digest_of(manifest.SerializeToString(deterministic=True))


def compile_seconds_of(manifest: Manifest) -> float:
    """What the worker took for what a pod would have to do itself: compiling and tuning, not packing and checking."""
    return sum(timing.seconds for timing in manifest.timings if timing.phase in (PHASE_COMPILING, PHASE_TUNING))


def check_guards(manifest: Manifest, job: Job) -> None:
    """Checks that an artifact may be run with a job's numbers.

    Raises:
        InvalidRequest: a guard is malformed.
        IncompatibleArtifact: a guard does not hold.
    """
    for guard in manifest.guards:
        check_expression(guard, symbols=len(job.symbols), condition=True, what="a guard of the artifact")
    if not holds(manifest.guards, job.hints):
        raise IncompatibleArtifact("the artifact is for other sizes than those of this call")
