"""The tensors that a graph holds: clients store them before they ask for a compile."""

from __future__ import annotations

from compilefarm.core.errors import MissingBlobs, NotStored
from compilefarm.store.artifact_store import ArtifactStore
from compilefarm.v1.job_pb2 import Job

_SHOWN_DIGESTS = 5


async def require_constants(job: Job, *, store: ArtifactStore) -> None:
    """Passes if every tensor that the graph holds is stored.

    Raises:
        MissingBlobs: some are not.
    """
    missing = await store.find_missing(_digests(job))
    if missing:
        raise _missing(missing)


async def read_constants(job: Job, *, store: ArtifactStore) -> dict[str, bytes]:
    """Content by digest of the tensors that the graph holds.

    Raises:
        MissingBlobs: one is not there any more, or its bytes no longer match.
    """
    blobs = {}
    for digest in _digests(job):
        try:
            blobs[digest] = await store.get_blob(digest)
        except NotStored as error:
            raise _missing([digest]) from error
    return blobs


def _digests(job: Job) -> list[str]:
    return list(dict.fromkeys(constant.digest for constant in job.graph.constants))


def _missing(digests: list[str]) -> MissingBlobs:
    shown = ", ".join(digests[:_SHOWN_DIGESTS])
    more = f" and {len(digests) - _SHOWN_DIGESTS} more" if len(digests) > _SHOWN_DIGESTS else ""
    return MissingBlobs(
        f"{len(digests)} tensors of the graph are not stored: {shown}{more}; send them with BlobService.Write, "
        "then ask again"
    )
