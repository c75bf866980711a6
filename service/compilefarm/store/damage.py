"""Sets damaged and withdrawn objects aside, with the reason, for inspection."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import IO

from compilefarm.core.errors import StoreUnavailable
from compilefarm.store.backend import Backend
from compilefarm.store.layout import MANIFESTS, reason_path, set_aside_path
from compilefarm.store.uses import Now

_logger = logging.getLogger(__name__)

# Returns what is wrong with the content of an object; empty if it is intact.
Examine = Callable[[IO[bytes]], Awaitable[str]]


class Damage:
    """Sets damaged objects aside, and counts them.

    Attributes:
        blobs: how many blobs were set aside since the store was opened.
        manifests: how many manifests were.

    Args:
        backend: where the objects lie.
        now: seconds since 1970.
    """

    def __init__(self, backend: Backend, *, now: Now) -> None:
        self._backend = backend
        self._now = now
        self._lock = asyncio.Lock()
        self.blobs = 0
        self.manifests = 0

    async def set_aside(self, path: str, *, examine: Examine) -> None:
        """Takes an object out of use if it is damaged.

        Args:
            path: where it lies.
            examine: looks at it. What the caller has seen may be gone by now, and sound bytes in its place.

        Raises:
            StoreUnavailable: it can be neither moved nor deleted.
        """
        async with self._lock:
            # As a file: it may be larger than memory.
            file = await self._backend.open(path)
            if file is None:
                return
            with file:
                reason = await examine(file)
            if not reason:
                return
            try:
                await self._move(path, reason=reason)
            except StoreUnavailable as error:
                _logger.error("%s is damaged (%s) and could not be moved, so it is deleted: %s", path, reason, error)
                await self._backend.delete(path)
            else:
                _logger.error("%s is damaged (%s) and was moved to %s", path, reason, set_aside_path(path))
            if path.startswith(MANIFESTS):
                self.manifests += 1
            else:
                self.blobs += 1

    async def withdraw(self, path: str, *, reason: str) -> None:
        """Sets an intact object aside that must not be used any more.

        Raises:
            StoreUnavailable: it can be neither moved nor deleted.
        """
        async with self._lock:
            try:
                await self._move(path, reason=reason)
            except StoreUnavailable as error:
                _logger.error("%s could not be moved, so it is deleted: %s", path, error)
                await self._backend.delete(path)
        _logger.error("%s is withdrawn (%s); what is left of it lies at %s", path, reason, set_aside_path(path))

    async def _move(self, path: str, *, reason: str) -> None:
        when = datetime.fromtimestamp(self._now(), UTC).isoformat(timespec="seconds")
        try:
            await self._backend.delete(reason_path(path))
            await self._backend.create(reason_path(path), content=f"{when} {path}: {reason}\n".encode())
        except StoreUnavailable as error:
            # On a full disk there is no room for words, and none is needed for the rest.
            _logger.warning("why %s is set aside cannot be written beside it: %s", path, error)
        await self._backend.move(path, target=set_aside_path(path))
