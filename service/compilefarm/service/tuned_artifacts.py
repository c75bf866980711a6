"""Finds the artifacts for which workers have tuned Triton's kernels."""

from __future__ import annotations

import heapq
from collections.abc import AsyncIterator, Sequence

from compilefarm.store.artifact_store import ArtifactStore
from compilefarm.store.layout import MANIFESTS, key_of, namespace_of
from compilefarm.v1.manifest_pb2 import BUILDER_KERNEL, Manifest

# Those stored last: each is read.
_MOST_LOOKED_AT = 1000


async def find_tuned(store: ArtifactStore, *, namespaces: Sequence[str]) -> AsyncIterator[Manifest]:
    """Yields the manifests of artifacts that hold Triton's kernels and can be served, those stored last at the end.

    Args:
        store: where they lie.
        namespaces: of which ones.

    Raises:
        StoreUnavailable: the store cannot be read.
    """
    latest: list[tuple[float, str]] = []
    # One by one as they come: there may be hundreds of thousands.
    async for stored in store.shared.objects(MANIFESTS):
        if namespace_of(stored.path) in namespaces:
            heapq.heappush(latest, (stored.modified_seconds, stored.path))
            if len(latest) > _MOST_LOOKED_AT:
                heapq.heappop(latest)
    for _, path in sorted(latest):
        manifest = await store.find_manifest(key_of(path), namespaces=[namespace_of(path)])
        if manifest is not None and _is_tuned(manifest):
            yield manifest


def _is_tuned(manifest: Manifest) -> bool:
    return manifest.HasField("sources") and any(library.builder == BUILDER_KERNEL for library in manifest.libraries)
