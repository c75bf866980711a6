"""Finds an artifact by what an operator types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compilefarm.core.errors import InvalidRequest, NotStored
from compilefarm.core.keys import is_key
from compilefarm.store.artifact_store import ArtifactStore
from compilefarm.v1.manifest_pb2 import Check, Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """What is known of a key.

    Attributes:
        manifest: of its artifact; None where one was made and is not served.
        checks: what checks found, beside what the manifest says; the latest last.
    """

    manifest: Manifest | None
    checks: Sequence[Check]


async def inspect(text: str, *, store: ArtifactStore) -> Inspection:
    """What is stored under a key, or under the only stored key that begins like that.

    Raises:
        InvalidRequest: it cannot begin a key, or several keys begin like that; the message lists them.
        NotStored: nothing is stored there.
    """
    keys = [text] if is_key(text) else await store.find_by_prefix(text)
    if len(keys) > 1:
        raise InvalidRequest("\n  ".join([f"several keys begin with {text}; give more of the one you mean:", *keys]))
    manifest = await store.find_manifest(keys[0]) if keys else None
    checks = await store.find_checks(keys[0]) if keys else []
    if manifest is None and not checks:
        raise NotStored(f"nothing is stored under {text}; it was never compiled, or its artifact is gone")
    return Inspection(manifest=manifest, checks=checks)
