"""Finds an artifact by what an operator types."""

from __future__ import annotations

from collections.abc import Sequence

from compilefarm.core.errors import InvalidRequest, NotStored
from compilefarm.core.keys import is_key
from compilefarm.store.artifact_store import ArtifactStore
from compilefarm.v1.manifest_pb2 import Manifest


async def inspect(text: str, *, store: ArtifactStore, namespaces: Sequence[str]) -> Manifest:
    """The manifest stored under a key, or under the only key that begins like that.

    Args:
        text: the key, or its beginning.
        store: where to look.
        namespaces: in which of its namespaces.

    Raises:
        InvalidRequest: it cannot begin a key, or several keys begin like that; the message lists them.
        NotStored: nothing is stored there.
    """
    keys = [text] if is_key(text) else await store.find_by_prefix(text)
    looked = [(key, await store.find_manifest(key, namespaces=namespaces)) for key in keys]
    found = {key: manifest for key, manifest in looked if manifest is not None}
    if len(found) > 1:
        raise InvalidRequest("\n  ".join([f"several keys begin with {text}; give more of the one you mean:", *found]))
    if not found:
        raise NotStored(f"nothing is stored under {text}; it was never compiled, or its artifact is gone")
    return next(iter(found.values()))
