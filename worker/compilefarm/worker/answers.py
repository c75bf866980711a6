"""Checks the answers of a child. Its job may have taken the process over, so an answer may concern that job alone, and
is bounded in size.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, MutableSet, Sequence

from compilefarm.core.artifacts import blobs_of, check_guards
from compilefarm.core.contents import Content
from compilefarm.core.digests import check_digest
from compilefarm.core.errors import FarmError, InvalidRequest
from compilefarm.core.pool import Artifact
from compilefarm.v1.child_pb2 import ChildFailure, ChildProgress, CompileResult
from compilefarm.v1.job_pb2 import FailureKind, Job, Phase
from compilefarm.v1.manifest_pb2 import Library, Manifest, Timing, Verification
from compilefarm.worker.process import ChildDied

# Some thousand characters are all that a child of ours says; logs, pods and the store get it.
_LARGEST_FAILURE_BYTES = 64 * 1024
# Each pod that loads the artifact gets its manifest. One kernel of a GPU takes 250 bytes of it.
_LARGEST_MANIFEST_BYTES = 1024 * 1024
_LARGEST_VERIFICATION_BYTES = 4 * 1024
# Part of the name of a module.
_LIBRARY_NAME = re.compile(r"[A-Za-z0-9_.-]{1,1000}")
# Others learn from it how long their jobs will take, and no compile takes a month.
_LONGEST_PHASE_SECONDS = 30 * 24 * 3600.0


def new_phase(progress: ChildProgress, *, entered: MutableSet[Phase.ValueType]) -> Phase.ValueType:
    """Returns the phase that a child says it enters, and adds it to those that it has entered. All who wait for the job
    are told of it.

    Raises:
        ChildDied: there is none of that number, or it was entered before.
    """
    phase = progress.phase
    if phase not in Phase.values() or phase in entered:
        raise ChildDied(f"it said that it enters phase {phase}, which there is not, or that it has entered already")
    entered.add(phase)
    return phase


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


def checked_verification(verified: Verification) -> Verification:
    """Returns what a child found of an artifact.

    Raises:
        ChildDied: it cannot have found that.
    """
    if verified.ByteSize() > _LARGEST_VERIFICATION_BYTES:
        raise ChildDied(f"it said {verified.ByteSize()} bytes about what it verified")
    seconds = (verified.load_seconds, verified.first_call_seconds, verified.call_seconds, verified.eager_call_seconds)
    if not all(map(_is_duration, seconds)):
        raise ChildDied("it said that a program took times that cannot be")
    verified.DiscardUnknownFields()
    return verified


def checked_result(result: CompileResult, *, job: Job) -> CompileResult:
    """Returns what a child says of its artifact. To copy it takes longer than to parse it, 8 s for two million timings,
    so that it is looked at first.

    Raises:
        ChildDied: none can be made so.
    """
    _check_size(result)
    _check_timings(result.timings)
    _check_libraries(result.libraries)
    try:
        check_guards(result.guards, job)
    except FarmError as error:
        raise ChildDied(f"it returned guards that cannot be: {error}") from error
    return result


def complete(manifest: Manifest, blobs: Mapping[str, Content]) -> Artifact:
    """Returns an artifact made of the manifest and the bytes that a child sent.

    Raises:
        ChildDied: it cannot be.
    """
    manifest.DiscardUnknownFields()
    _check_size(manifest)
    named = blobs_of(manifest)
    missing = sorted({blob.digest for blob in named} - blobs.keys())
    if missing:
        raise ChildDied(f"it named blobs that it did not send: {', '.join(missing)}")
    if any(blob.size_bytes != len(blobs[blob.digest]) for blob in named):
        raise ChildDied("it named blobs of other sizes than those that it sent")
    return Artifact(manifest=manifest, blobs={blob.digest: blobs[blob.digest] for blob in named})


def _check_size(said: CompileResult | Manifest) -> None:
    if said.ByteSize() > _LARGEST_MANIFEST_BYTES:
        raise ChildDied(f"it said {said.ByteSize()} bytes about its artifact")


def _check_timings(timings: Sequence[Timing]) -> None:
    if len(timings) > len(Phase.values()):
        raise ChildDied(f"it said how long {len(timings)} phases took, which are too many")
    phases = [timing.phase for timing in timings]
    if len(set(phases)) < len(phases) or not set(phases) <= set(Phase.values()):
        raise ChildDied("it said how long phases took that there are not, or said it twice")
    if not all(_is_duration(each.seconds) for each in timings):
        raise ChildDied("it said that phases took times that cannot be")


def _check_libraries(libraries: Sequence[Library]) -> None:
    for library in libraries:
        try:
            check_digest(library.source_digest)
        except InvalidRequest as error:
            raise ChildDied(f"it returned a library for a source that cannot be: {error}") from error
        if _LIBRARY_NAME.fullmatch(library.name) is None:
            raise ChildDied(f"it returned a library of a name that cannot be: {library.name[:80]!r}")


def _is_duration(seconds: float) -> bool:
    return math.isfinite(seconds) and 0 <= seconds <= _LONGEST_PHASE_SECONDS
