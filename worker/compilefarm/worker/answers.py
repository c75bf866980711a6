"""Checks the answers of a child. Its job may have taken the process over, so an answer may concern that job alone, and
is bounded in size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from compilefarm.core.artifacts import blobs_of, check_guards
from compilefarm.core.errors import FarmError
from compilefarm.core.pool import Artifact
from compilefarm.v1.child_pb2 import ChildFailure, ChildProgress
from compilefarm.v1.job_pb2 import FailureKind, Job, Phase
from compilefarm.v1.manifest_pb2 import Manifest, Timing
from compilefarm.worker.process import ChildDied

# Some thousand characters are all that a child of ours says; logs, pods and the store get it.
_LARGEST_FAILURE_BYTES = 64 * 1024
# Others learn from it how long their jobs will take, and no compile takes a month.
_LONGEST_PHASE_SECONDS = 30 * 24 * 3600.0


def known_phase(progress: ChildProgress) -> Phase.ValueType:
    """Returns the phase that a child says it enters.

    Raises:
        ChildDied: there is none of that number.
    """
    if progress.phase not in Phase.values():
        raise ChildDied(f"it said that it enters phase {progress.phase}, which there is not")
    return progress.phase


def checked_failure(failed: ChildFailure) -> ChildFailure:
    """Returns the failure that a child reports.

    Raises:
        ChildDied: none can fail so.
    """
    if failed.failure.kind not in FailureKind.values():
        raise ChildDied(f"it said that it failed in way {failed.failure.kind}, which there is not")
    if failed.ByteSize() > _LARGEST_FAILURE_BYTES:
        raise ChildDied(f"it said {failed.ByteSize()} bytes about its failure")
    return failed


def complete(manifest: Manifest, blobs: Mapping[str, bytes], *, job: Job) -> Artifact:
    """Returns an artifact made of the manifest and the bytes that a child sent.

    Raises:
        ChildDied: it cannot be.
    """
    _check_timings(manifest.timings)
    try:
        check_guards(manifest, job)
    except FarmError as error:
        raise ChildDied(f"it returned guards that cannot be: {error}") from error
    named = blobs_of(manifest)
    missing = sorted({blob.digest for blob in named} - blobs.keys())
    if missing:
        raise ChildDied(f"it named blobs that it did not send: {', '.join(missing)}")
    if any(blob.size_bytes != len(blobs[blob.digest]) for blob in named):
        raise ChildDied("it named blobs of other sizes than those that it sent")
    return Artifact(manifest=manifest, blobs={blob.digest: blobs[blob.digest] for blob in named})


def _check_timings(timings: Sequence[Timing]) -> None:
    phases = [timing.phase for timing in timings]
    if len(set(phases)) < len(phases) or not set(phases) <= set(Phase.values()):
        raise ChildDied("it said how long phases took that there are not, or said it twice")
    if not all(math.isfinite(each.seconds) and 0 <= each.seconds <= _LONGEST_PHASE_SECONDS for each in timings):
        raise ChildDied("it said that phases took times that cannot be")
