"""A directory as the store's backend, and the two things that obstore leaves out there.

obstore's local store writes `name#N` and links it to `name`. It does not flush to disk, so a power failure can lose
an object that was acknowledged, and it leaves the `name#N` of a killed process behind.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from obstore.store import LocalStore

from compilefarm.core.errors import StoreUnavailable
from compilefarm.store.backend import Backend, WrappingBackend
from compilefarm.store.layout import BLOBS, MANIFESTS
from compilefarm.store.object_backend import ObjectBackend

# A service that shares the directory may be writing at this moment; no single write takes that long.
ABANDONED_AFTER_SECONDS = 3600
_STAGING_NAME = re.compile(r"[0-9a-f]+#[0-9]+")
_logger = logging.getLogger(__name__)


def open_directory(location: str) -> Backend:
    """Opens a directory, which is created if it is missing, and removes staging files that nobody will finish.

    Args:
        location: its path; a leading "~" is the home directory.

    Raises:
        StoreUnavailable: it cannot be created or read.
    """
    directory = Path(os.path.expanduser(location))
    try:
        directory.mkdir(parents=True, exist_ok=True)
        root = directory.resolve(strict=True)
        _sweep(root)
    except OSError as error:
        raise StoreUnavailable(
            f"the store directory {directory} cannot be used: {error.strerror}; "
            "name a directory that this user may create and write"
        ) from error
    return DurableBackend(ObjectBackend(LocalStore(root), location=str(root)), root=root)


class DurableBackend(WrappingBackend):
    """Flushes what was created before it is acknowledged.

    Args:
        backend: a backend that keeps its objects as files.
        root: the directory that its paths are relative to.
    """

    def __init__(self, backend: Backend, *, root: Path) -> None:
        super().__init__(backend)
        self._root = root

    async def create(self, path: str, *, content: bytes) -> bool:
        created = await super().create(path, content=content)
        if created:
            await asyncio.to_thread(self._flush, path)
        return created

    def _flush(self, path: str) -> None:
        try:
            for place in self._up_from(path):
                _flush(place)
        except OSError as error:
            raise StoreUnavailable(
                f"the store at {self.location} could not flush {path} to disk: {error.strerror}; check the disk"
            ) from error

    def _up_from(self, path: str) -> Iterator[Path]:
        # The file first, then every folder up to the root: any of them may be new, and its name lies in the one above.
        place = self._root / path
        while place != self._root:
            yield place
            place = place.parent
        yield self._root


def _flush(place: Path) -> None:
    descriptor = os.open(place, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sweep(root: Path) -> None:
    started_before = time.time() - ABANDONED_AFTER_SECONDS
    for path in _staging_files(root):
        # Another service may be sweeping at this moment.
        with suppress(FileNotFoundError):
            if path.stat().st_mtime < started_before:
                path.unlink()
                _logger.info("removed %s, which a service that was killed had not finished", path)


def _staging_files(root: Path) -> Iterator[Path]:
    for area in (BLOBS, MANIFESTS):
        for folder, _, names in os.walk(root / area):
            yield from (Path(folder, name) for name in names if _STAGING_NAME.fullmatch(name))
