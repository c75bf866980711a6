"""Whether an artifact is what was asked for, and of the farm: asked before anything of it is fetched."""

from __future__ import annotations

from collections.abc import Sequence

from compilefarm.core.errors import UntrustedArtifact
from compilefarm.core.keys import key_of
from compilefarm.core.public_keys import PublicKey
from compilefarm.v1.job_pb2 import Job
from compilefarm.v1.manifest_pb2 import Manifest


def check_origin(manifest: Manifest, job: Job, *, trusted: Sequence[PublicKey]) -> None:
    """Passes if the artifact is for the job, and somebody who is trusted says so.

    Args:
        manifest: describes the artifact.
        job: what was asked for.
        trusted: whose word counts; if there are none, anybody's does.

    Raises:
        UntrustedArtifact: nobody says so, or the artifact is for another job: of the same environment it could be
            loaded, and would compute something else.
    """
    if trusted:
        # Pods that trust the address that they were given need not have it.
        from compilefarm.core.signatures import check_signature

        check_signature(manifest, trusted=trusted)
    wanted = key_of(job).text
    if manifest.key != wanted:
        raise UntrustedArtifact(
            f"the farm answered with the artifact of another graph: {manifest.key or 'no key'} instead of {wanted}; "
            "its log and its store tell why"
        )
