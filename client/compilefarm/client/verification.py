"""Whether the farm made an artifact, asked before anything of it is fetched."""

from __future__ import annotations

from collections.abc import Sequence

from compilefarm.core.errors import UntrustedArtifact
from compilefarm.core.keys import key_of
from compilefarm.core.public_keys import PublicKey
from compilefarm.v1.job_pb2 import Job
from compilefarm.v1.manifest_pb2 import Manifest


def check_origin(manifest: Manifest, job: Job, *, trusted: Sequence[PublicKey]) -> None:
    """Passes if somebody who is trusted says that the artifact is for the job.

    Args:
        manifest: describes the artifact.
        job: what was asked for.
        trusted: whose word counts; if there are none, anybody's does.

    Raises:
        UntrustedArtifact: nobody does.
    """
    if not trusted:
        return
    # Pods that trust the address that they were given need not have it.
    from compilefarm.core.signatures import check_signature

    check_signature(manifest, trusted=trusted)
    if manifest.key != key_of(job).text:
        raise UntrustedArtifact(f"the farm answered with the artifact of another graph ({manifest.key}): see its log")
