"""Finds an artifact by its key, or by the beginning of a key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compilefarm.core.errors import InvalidRequest, NotStored
from compilefarm.core.keys import is_key
from compilefarm.store.artifact_store import ArtifactStore
from compilefarm.v1.manifest_pb2 import Check, Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """The artifact and the checks of a key.

    Attributes:
        manifest: of its artifact; None where one was made and is not served.
        checks: what checks found, beside what the manifest says; the latest last.
    """

    manifest: Manifest | None
    checks: Sequence[Check]


async def inspect(text: str, *, store: ArtifactStore, namespaces: Sequence[str]) -> Inspection:
    """Returns what is stored under a key, or under the only stored key with that prefix.

    Args:
        text: the key, or its beginning.
        store: where to look.
        namespaces: in which of its namespaces.

    Raises:
        InvalidRequest: it cannot begin a key, or several keys begin like that; the message lists them.
        NotStored: nothing is stored there.
    """
    keys = [text] if is_key(text) else await store.find_by_prefix(text, namespaces=namespaces)
    looked = [(key, await _look(key, store=store, namespaces=namespaces)) for key in keys]
    found = {key: inspection for key, inspection in looked if inspection is not None}
    if len(found) > 1:
        raise InvalidRequest("\n  ".join([f"several keys begin with {text}; give more of the one you mean:", *found]))
    if not found:
        raise NotStored(f"nothing is stored under {text}; it was never compiled, or its artifact is gone")
    return next(iter(found.values()))


async def _look(key: str, *, store: ArtifactStore, namespaces: Sequence[str]) -> Inspection | None:
    manifest = await store.find_manifest(key, namespaces=namespaces)
    checks = await store.find_checks(key, namespaces=namespaces)
    return None if manifest is None and not checks else Inspection(manifest=manifest, checks=checks)
