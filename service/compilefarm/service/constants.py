"""The tensors that a graph holds, which clients upload."""

from __future__ import annotations

from collections import Counter

from compilefarm.core.errors import InvalidRequest, MissingBlobs, NotStored
from compilefarm.core.held_tensors import MAX_BYTES, MAX_BYTES_OF_GRAPH
from compilefarm.store.artifact_store import ArtifactStore
from compilefarm.v1.job_pb2 import Job

_SHOWN_DIGESTS = 5


async def require_constants(job: Job, *, store: ArtifactStore, namespace: str) -> None:
    """Passes if every tensor that the graph holds is stored, for a namespace.

    Raises:
        MissingBlobs: some are not.
    """
    missing = await store.find_missing(_digests(job), namespace=namespace)
    if missing:
        raise _missing(missing)


async def read_constants(job: Job, *, store: ArtifactStore) -> dict[str, bytes]:
    """Reads the tensors that the graph holds; returns contents by digest.

    Raises:
        InvalidRequest: they are larger than tensors of a graph can be.
        MissingBlobs: one is not there any more, or its bytes no longer match.
    """
    blobs: dict[str, bytes] = {}
    size_bytes = 0
    # A graph may hold the same bytes as any number of tensors, and each is written into what is compiled.
    counts = Counter(constant.digest for constant in job.graph.constants)
    for digest, count in counts.items():
        # Before it is read: a blob may be larger than memory.
        size_bytes += count * await _check_size(digest, store=store)
        if size_bytes > MAX_BYTES_OF_GRAPH:
            raise InvalidRequest(
                f"the graph holds tensors of more than the {MAX_BYTES_OF_GRAPH} bytes that are allowed"
            )
        try:
            blobs[digest] = await store.get_blob(digest)
        except NotStored as error:
            raise _missing([digest]) from error
    return blobs


async def _check_size(digest: str, *, store: ArtifactStore) -> int:
    size_bytes = await store.find_size(digest)
    if size_bytes is None:
        raise _missing([digest])
    if size_bytes > MAX_BYTES:
        raise InvalidRequest(f"the tensor {digest} has {size_bytes} bytes: one of a graph has at most {MAX_BYTES}")
    return size_bytes


def _digests(job: Job) -> list[str]:
    return list(dict.fromkeys(constant.digest for constant in job.graph.constants))


def _missing(digests: list[str]) -> MissingBlobs:
    shown = ", ".join(digests[:_SHOWN_DIGESTS])
    more = f" and {len(digests) - _SHOWN_DIGESTS} more" if len(digests) > _SHOWN_DIGESTS else ""
    return MissingBlobs(
        f"{len(digests)} tensors of the graph are not stored: {shown}{more}; send them with BlobService.Write, "
        "then ask again"
    )
