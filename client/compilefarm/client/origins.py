"""Refuses artifacts that are not what was asked for, or not of the farm, before anything of them is fetched."""

from __future__ import annotations

from collections.abc import Sequence

from compilefarm.core.errors import UntrustedArtifact
from compilefarm.core.keys import FORMATS, UNNAMED_FORMAT, Part, find_foreign_parts, key_of, newest_format
from compilefarm.core.public_keys import PublicKey
from compilefarm.v1.job_pb2 import Job
from compilefarm.v1.manifest_pb2 import Manifest


def require_origin(manifest: Manifest, job: Job, *, trusted: Sequence[PublicKey]) -> None:
    """Passes if the artifact is for the job, and a trusted key has signed it.

    Args:
        manifest: describes the artifact.
        job: what was asked for.
        trusted: keys that may have signed it; if there are none, any farm is trusted.

    Raises:
        UntrustedArtifact: no trusted key has signed it, or it is for another job: of the same environment it could be
            loaded, and would compute something else.
    """
    if trusted:
        # Pods that trust the address that they were given need not have it.
        from compilefarm.core.signatures import check_signature

        check_signature(manifest, trusted=trusted)
    parts = (Part(name=part.name, digest=part.digest) for part in manifest.key_parts)
    format = manifest.key_format or UNNAMED_FORMAT
    foreign = find_foreign_parts(manifest.key, format=format, parts=parts, job=job)
    if foreign is None and format not in FORMATS:
        raise UntrustedArtifact(
            f"the farm makes keys of format {format}, and this release knows {', '.join(map(str, FORMATS))}: upgrade "
            "the older end"
        )
    if foreign is None or foreign:
        differing = f", which differs in {', '.join(map(_word, foreign))}" if foreign else ""
        raise UntrustedArtifact(
            "the farm answered with the artifact of another graph: "
            f"{manifest.key or 'no key'} instead of {key_of(job).text}{differing}; its log and its store tell why"
        )


def _word(name: str) -> str:
    is_known = name in FORMATS[newest_format()]
    return name if is_known else f"{name!r} (a part of keys that this release does not know)"
