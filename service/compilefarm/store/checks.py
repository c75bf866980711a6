"""Checks: records of verifications, beside the manifests of the artifacts or without any."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from google.protobuf.message import DecodeError

from compilefarm.core.digests import digest_of
from compilefarm.core.moments import is_moment
from compilefarm.store.backend import Backend
from compilefarm.store.layout import CHECKS, check_folder, check_path, key_of, namespace_of
from compilefarm.v1.manifest_pb2 import Check

# A graph whose artifact failed is not worth the caution for ever: torch, drivers and workers change.
KEPT_SECONDS = 7 * 24 * 3600.0
# Of one key, in memory. Most have less than a kilobyte, and one of an artifact that failed before it was served has its
# request: whoever has a graph that fails can have it fail for any number of sizes.
_MOST_BYTES = 16 * 1024 * 1024
_logger = logging.getLogger(__name__)


class CheckStore:
    """Checks in a backend. Each is an immutable object, named by the digest of its bytes."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def put(self, check: Check) -> None:
        """Stores a check.

        Raises:
            InvalidRequest: its key is not written as a key, or its namespace not as a namespace.
            StoreUnavailable: the store cannot be written.
        """
        content = check.SerializeToString(deterministic=True)
        path = check_path(check.key, digest=digest_of(content), namespace=check.namespace)
        await self._backend.create(path, content=content)

    async def find(self, key: str, *, namespaces: Sequence[str]) -> list[Check]:
        """Returns the checks of a key's artifacts in some namespaces, the latest last, without damaged ones: those that
        were written last, until they are together larger than _MOST_BYTES.

        Raises:
            InvalidRequest: `key` is not written as a key.
            StoreUnavailable: the store cannot be read.
        """
        found = [each async for each in self._backend.objects(check_folder(key))]
        wanted = (each for each in found if namespace_of(each.path) in namespaces)
        checks, left_bytes = [], _MOST_BYTES
        for stored in sorted(wanted, key=lambda each: each.modified_seconds, reverse=True):
            if left_bytes <= 0:
                break
            content = await self._backend.find(stored.path)
            if content is not None:
                left_bytes -= len(content)
                if (check := _read(content, path=stored.path)) is not None:
                    checks.append(check)
        return sorted(checks, key=lambda check: check.ended.ToNanoseconds())

    async def forget(self, *, before_seconds: float, but: frozenset[str]) -> None:
        """Removes checks that are older than a moment (seconds since 1970) and whose key is none of those named.

        Raises:
            StoreUnavailable: the store cannot be written.
        """
        old = [
            stored.path async for stored in self._backend.objects(CHECKS) if stored.modified_seconds < before_seconds
        ]
        for path in old:
            if key_of(path) not in but:
                await self._backend.delete(path)


def _read(content: bytes, *, path: str) -> Check | None:
    if digest_of(content) != path.rpartition("/")[2]:
        _logger.warning("%s is damaged and passed over", path)
        return None
    try:
        check = Check.FromString(content)
    except DecodeError as error:
        _logger.warning("%s cannot be read and is passed over: %s", path, error)
        return None
    if not is_moment(check.ended):
        _logger.warning("%s has a time beyond the calendar and is passed over", path)
        return None
    return check
