"""What checks found of artifacts after these were stored, or of artifacts that never were."""

from __future__ import annotations

import logging

from google.protobuf.message import DecodeError

from compilefarm.core.digests import digest_of
from compilefarm.store.backend import Backend
from compilefarm.store.layout import CHECKS, check_folder, key_of_manifest
from compilefarm.v1.manifest_pb2 import Check

# A graph whose artifact failed is not worth the caution for ever: torch, drivers and workers change.
KEPT_SECONDS = 7 * 24 * 3600.0
_logger = logging.getLogger(__name__)


class CheckStore:
    """Checks in a backend. Each is an object that is named by the digest of its bytes, and never changed."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def put(self, check: Check) -> None:
        """Keeps what was found.

        Raises:
            InvalidRequest: its key is not written as a key.
            StoreUnavailable: the store cannot be written.
        """
        content = check.SerializeToString(deterministic=True)
        await self._backend.create(f"{check_folder(check.key)}/{digest_of(content)}", content=content)

    async def find(self, key: str) -> list[Check]:
        """What was found of a key's artifacts, the latest last. What is damaged is passed over.

        Raises:
            InvalidRequest: `key` is not written as a key.
            StoreUnavailable: the store cannot be read.
        """
        checks = []
        async for entry in self._backend.entries(check_folder(key)):
            content = await self._backend.find(entry.path)
            if content is not None and (check := _read(content, path=entry.path)) is not None:
                checks.append(check)
        return sorted(checks, key=lambda check: check.ended.ToNanoseconds())

    async def forget(self, *, before_seconds: float, but: frozenset[str]) -> None:
        """Removes checks that are older than a moment (seconds since 1970) and whose key is none of those named.

        Raises:
            StoreUnavailable: the store cannot be written.
        """
        old = [entry.path async for entry in self._backend.entries(CHECKS) if entry.modified_seconds < before_seconds]
        for path in old:
            if key_of_manifest(path) not in but:
                await self._backend.delete(path)


def _read(content: bytes, *, path: str) -> Check | None:
    if digest_of(content) != path.rpartition("/")[2]:
        _logger.warning("%s is damaged and passed over", path)
        return None
    try:
        return Check.FromString(content)
    except DecodeError as error:
        _logger.warning("%s cannot be read and is passed over: %s", path, error)
        return None
