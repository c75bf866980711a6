"""Manifests: what is stored under a key.

A manifest is written once and never changed. One that cannot be served (unreadable, of an unknown format, or with blobs
that were lost) is passed over, and the next artifact of its key takes the next number: no writer ever has to remove
what another one may just have written.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence

from google.protobuf.message import DecodeError

from compilefarm.core.artifacts import ARTIFACT_FORMAT, blobs_of
from compilefarm.core.digests import check_digest
from compilefarm.core.errors import InvalidRequest
from compilefarm.core.expressions import MAX_SYMBOLS, check_expression, holds
from compilefarm.store.backend import Backend
from compilefarm.store.blobs import BlobStore
from compilefarm.store.layout import GRAPH_DIGITS, MANIFESTS, manifest_path
from compilefarm.v1.manifest_pb2 import Manifest

SHORTEST_PREFIX = 6
MOST_KEYS = 20
_PREFIX = re.compile(rf"[0-9a-f-]{{{SHORTEST_PREFIX},}}")
_logger = logging.getLogger(__name__)


class ManifestStore:
    """Manifests in a backend.

    Args:
        backend: where they lie.
        blobs: where the blobs lie that they name.
    """

    def __init__(self, backend: Backend, *, blobs: BlobStore) -> None:
        self._backend = backend
        self._blobs = blobs

    async def find(self, key: str, *, hints: Sequence[int] | None = None) -> Manifest | None:
        """The first manifest of a key that can be served and whose guards hold for `hints`; None takes any.

        Raises:
            InvalidRequest: `key` is not written as a key.
            StoreUnavailable: the store cannot be read.
        """
        manifest, _ = await self._survey(key, wanted=lambda stored: hints is None or holds(stored.guards, hints))
        return manifest

    async def add(self, manifest: Manifest) -> Manifest:
        """Stores a manifest unless its key has one with the same guards that can be served; returns what is stored now.

        Raises:
            InvalidRequest: its key is not written as a key.
            StoreUnavailable: the store cannot be read or written.
        """
        content = manifest.SerializeToString(deterministic=True)
        while True:
            stored, free = await self._survey(manifest.key, wanted=lambda stored: stored.guards == manifest.guards)
            if stored is not None:
                return stored
            if await self._backend.create(manifest_path(manifest.key, variant=free), content=content):
                return manifest

    async def find_by_prefix(self, prefix: str) -> list[str]:
        """Stored keys that begin with `prefix`, sorted, at most MOST_KEYS.

        Raises:
            InvalidRequest: `prefix` cannot begin a key, or is too short to be looked for.
            StoreUnavailable: the store cannot be read.
        """
        if _PREFIX.fullmatch(prefix) is None:
            raise InvalidRequest(
                f"{prefix[:100]!r} does not begin a key: at least {SHORTEST_PREFIX} hexadecimal digits are expected"
            )
        keys: list[str] = []
        for graph in await self._graphs(prefix):
            rests = await self._backend.folders(f"{MANIFESTS}/{graph}")
            keys += [key for rest in rests if (key := f"{graph}-{rest}").startswith(prefix)]
            if len(keys) >= MOST_KEYS:
                break
        return keys[:MOST_KEYS]

    async def _graphs(self, prefix: str) -> list[str]:
        if len(prefix) >= GRAPH_DIGITS:
            return [prefix[:GRAPH_DIGITS]]
        return [graph for graph in await self._backend.folders(MANIFESTS) if graph.startswith(prefix)]

    async def _survey(self, key: str, *, wanted: Callable[[Manifest], bool]) -> tuple[Manifest | None, int]:
        """The first manifest that can be served and is wanted, and its number; or None and the first free number."""
        variant = 0
        while (content := await self._backend.find(path := manifest_path(key, variant=variant))) is not None:
            manifest = _read(content, path=path, key=key)
            if manifest is not None and wanted(manifest) and await self._blobs.hold(blobs_of(manifest)):
                return manifest, variant
            variant += 1
        return None, variant


def _read(content: bytes, *, path: str, key: str) -> Manifest | None:
    try:
        manifest = Manifest.FromString(content)
        if manifest.key != key:
            _logger.warning("%s is the manifest of %r and is passed over", path, manifest.key)
            return None
        for blob in blobs_of(manifest):
            check_digest(blob.digest)
        for guard in manifest.guards:
            check_expression(guard, symbols=MAX_SYMBOLS, condition=True, what="a guard")
    except (DecodeError, InvalidRequest) as error:
        _logger.warning("%s is no manifest and is passed over: %s", path, error)
        return None
    # A newer farm that shares the storage may have written another format: nothing is wrong with it.
    return manifest if manifest.format == ARTIFACT_FORMAT else None
