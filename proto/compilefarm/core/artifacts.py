"""The blobs and guards of an artifact, read from its manifest in the same way by store and loader."""

from __future__ import annotations

from collections.abc import Sequence

from compilefarm.core import expressions
from compilefarm.core.digests import digest_of
from compilefarm.core.errors import IncompatibleArtifact
from compilefarm.v1.graph_pb2 import Expression
from compilefarm.v1.job_pb2 import PHASE_COMPILING, PHASE_TUNING, Job
from compilefarm.v1.manifest_pb2 import Blob, Manifest

# The layout of the artifacts that this release writes and reads (Manifest.format).
ARTIFACT_FORMAT = 2


def blobs_to_run(manifest: Manifest) -> list[Blob]:
    """Returns the blobs that are needed to load an artifact: the program, then its libraries."""
    return [manifest.program, *(library.blob for library in manifest.libraries)]


def blobs_of(manifest: Manifest) -> list[Blob]:
    """Returns all blobs of an artifact, those for people included."""
    return [*blobs_to_run(manifest), *([manifest.sources] if manifest.HasField("sources") else [])]


def digest_of_manifest(manifest: Manifest) -> str:
    """Returns the digest of a manifest."""
    return digest_of(manifest.SerializeToString(deterministic=True))


def compile_seconds_of(manifest: Manifest) -> float:
    """Returns the seconds of compiling and tuning, which a pod without a farm would spend itself."""
    return sum(timing.seconds for timing in manifest.timings if timing.phase in (PHASE_COMPILING, PHASE_TUNING))


def check_guards(guards: Sequence[Expression], job: Job) -> None:
    """Checks that an artifact may be run with a job's numbers.

    Raises:
        InvalidRequest: a guard is malformed, or they are too many.
        IncompatibleArtifact: a guard does not hold.
    """
    expressions.check_guards(guards, symbols=len(job.symbols), what="a guard of the artifact")
    if not expressions.holds(guards, job.hints):
        raise IncompatibleArtifact("the artifact is for other sizes than those of this call")
