"""Objects as the files of a directory, read.

obstore opens whatever has the name of an object, and takes as much memory as its size says: it waits for ever where
that is a pipe, and ends the process where it is a file of terabytes that holds nothing. So files are opened here.
"""

from __future__ import annotations

import asyncio
import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import IO, TypeVar

from obstore.store import LocalStore

from compilefarm.core.regular_files import open_regular
from compilefarm.store.backend import LARGEST_IN_MEMORY_BYTES, StoredObject
from compilefarm.store.object_backend import ObjectBackend

Result = TypeVar("Result")


class DirectoryObjects(ObjectBackend):
    """Reads the files of a directory; the rest is as with any other store of obstore.

    Args:
        root: the directory.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(LocalStore(root), location=str(root))
        self._root = root

    async def find(self, path: str) -> bytes | None:
        return await self._do(f"read {path}", lambda: _read(self._root / path))

    async def find_end(self, path: str, *, size_bytes: int) -> bytes | None:
        return await self._do(f"read {path}", lambda: _read_end(self._root / path, size_bytes))

    async def find_object(self, path: str) -> StoredObject | None:
        return await self._do(f"look for {path}", lambda: self._look_for(path))

    async def open(self, path: str) -> IO[bytes] | None:
        return await self._do(f"read {path}", lambda: open_file(self._root / path))

    async def folders(self, folder: str, *, beginning: str = "") -> list[str]:
        return await self._do(f"list {folder}", lambda: _folders(self._root / folder, beginning))

    async def _do(self, action: str, work: Callable[[], Result]) -> Result:
        with self.reporting(action):
            return await asyncio.to_thread(work)

    def _look_for(self, path: str) -> StoredObject | None:
        try:
            found = os.stat(self._root / path)
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(found.st_mode):
            return None
        tag = f"{found.st_ino:x}-{found.st_mtime_ns:x}-{found.st_size:x}"
        return StoredObject(path=path, size_bytes=found.st_size, modified_seconds=found.st_mtime, tag=tag)


def open_file(path: Path) -> IO[bytes] | None:
    """Opens a file for reading; None if there is none, or something else in its place."""
    try:
        return open_regular(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        # The latter two are what opening a socket, or a device that is not there, ends in.
        if error.errno in (errno.EINVAL, errno.ENXIO, errno.ENODEV):
            return None
        raise


def _folders(place: Path, beginning: str) -> list[str]:
    try:
        with os.scandir(place) as entries:
            return sorted(each.name for each in entries if each.name.startswith(beginning) and each.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _read(path: Path) -> bytes | None:
    file = open_file(path)
    if file is None:
        return None
    with file:
        return file.read(LARGEST_IN_MEMORY_BYTES) or b""


def _read_end(path: Path, size_bytes: int) -> bytes | None:
    file = open_file(path)
    if file is None:
        return None
    with file:
        whole_bytes = os.fstat(file.fileno()).st_size
        return os.pread(file.fileno(), size_bytes, max(whole_bytes - size_bytes, 0))
