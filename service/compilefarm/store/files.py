"""Blobs as files while they are written or read, so that large ones are not held in memory."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import logging
import math
import os
import secrets
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from io import FileIO
from pathlib import Path
from typing import IO, Protocol

from compilefarm.core.chunks import DOWNLOAD_CHUNK_BYTES

_READ_BYTES = 1024 * 1024
_log = logging.getLogger(__name__)


class StagedBlob:
    """A blob that arrives in pieces, in a file of its own. Its digest is computed as they come.

    Attributes:
        path: the file.
        size_bytes: what has come.
    """

    def __init__(self, path: Path, file: FileIO) -> None:
        self.path = path
        self.size_bytes = 0
        self._file = file
        self._digest = hashlib.sha256()
        # A piece of who has gone away may still be written, and another file may get the number of this one meanwhile.
        self._lock = threading.Lock()

    async def write(self, piece: bytes) -> None:
        """Adds the next piece.

        Raises:
            OSError: the disk is full.
        """
        await asyncio.to_thread(self._write, piece)
        self.size_bytes += len(piece)

    @property
    def digest(self) -> str:
        """The digest of what has come."""
        return self._digest.hexdigest()

    async def append(self, trailer: bytes) -> None:
        """Adds what is no part of the blob behind it. Neither digest nor size counts it.

        Raises:
            OSError: the disk is full.
        """
        await asyncio.to_thread(self._append, trailer)

    def remove(self) -> None:
        """Closes and removes the file."""
        with self._lock:
            _close_and_remove(self._file, self.path)

    def _write(self, piece: bytes) -> None:
        self._append(piece)
        self._digest.update(piece)

    def _append(self, content: bytes) -> None:
        left = memoryview(content)
        with self._lock:
            while left:
                left = left[self._file.write(left) :]


@asynccontextmanager
async def staged(folder: Path, *, name: str) -> AsyncIterator[StagedBlob]:
    """A blob that arrives in a folder. The file goes when the context ends.

    Args:
        folder: where.
        name: what the file is called; a number is put behind it.

    Raises:
        OSError: the file cannot be made.
    """
    path = folder / f"{name}#{secrets.randbits(62)}"
    # No tasks: those that have not begun when the service ends never do, and the file would stay.
    in_thread = asyncio.get_running_loop().run_in_executor
    opening = in_thread(None, _open_new, path)
    try:
        file = await asyncio.shield(opening)
    except asyncio.CancelledError:
        # Whoever goes away meanwhile leaves nothing behind.
        opening.add_done_callback(partial(_discard, path))
        raise
    blob = StagedBlob(path, file)
    try:
        yield blob
    finally:
        # To give back the room of a large file takes a while.
        await asyncio.shield(in_thread(None, blob.remove))


def sweep(folder: Path) -> None:
    """Removes blobs that nobody writes any more from a folder: those of services that were killed.

    Raises:
        OSError: the folder cannot be read.
    """
    for path in folder.iterdir():
        # Somebody writes it or has just removed it, it is none of ours, or the file system has no locks. Those of NFS
        # want a file that is open for writing.
        with suppress(OSError), open(path, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
            _log.info("removed %s, which a service that was killed had not finished", path)


def _open_new(path: Path) -> FileIO:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Without a buffer: what there is no room for is not tried again when the file is closed.
    file = FileIO(path, "x+")
    # It ends with this process. Where the file system has no locks, nobody sweeps; those of NFS want a file that is
    # open for reading.
    with suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_SH)
    if path.exists():
        return file
    # Somebody has swept it before it was locked.
    file.close()
    return _open_new(path)


def _discard(path: Path, opening: asyncio.Future[FileIO]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        _close_and_remove(opening.result(), path)


def _close_and_remove(file: FileIO, path: Path) -> None:
    try:
        # Some network file systems say no sooner than here that there is no room.
        file.close()
    finally:
        path.unlink(missing_ok=True)


class Readable(Protocol):
    """The content of a blob.

    Attributes:
        size_bytes: its size.
    """

    size_bytes: int

    async def read(self, offset_bytes: int, size_bytes: int) -> bytes:
        """So many bytes from an offset on; fewer at the end."""


async def pieces_of(content: Readable, *, offset_bytes: int = 0) -> AsyncIterator[bytes]:
    """Yields a blob from an offset on, in pieces for the wire; one empty piece at the end."""
    while True:
        piece = await content.read(offset_bytes, min(DOWNLOAD_CHUNK_BYTES, content.size_bytes - offset_bytes))
        yield piece
        offset_bytes += len(piece)
        if not piece or offset_bytes >= content.size_bytes:
            return


class InMemory(Readable):
    """Bytes."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.size_bytes = len(content)

    async def read(self, offset_bytes: int, size_bytes: int) -> bytes:
        return self._content[offset_bytes : offset_bytes + size_bytes]

    def close(self) -> None:
        """Nothing is open."""


class InFile(Readable):
    """An open file."""

    def __init__(self, file: IO[bytes], *, size_bytes: int) -> None:
        self._file = file
        self.size_bytes = size_bytes

    async def read(self, offset_bytes: int, size_bytes: int) -> bytes:
        return await asyncio.to_thread(self._read, offset_bytes, size_bytes)

    def _read(self, offset_bytes: int, size_bytes: int) -> bytes:
        # Others read the same file.
        return os.pread(self._file.fileno(), size_bytes, offset_bytes)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def digest_of_file(file: IO[bytes], *, limit_bytes: float = math.inf) -> tuple[str, int]:
    """The digest of a file up to a limit, and the size of that in bytes."""
    digest, size_bytes = hashlib.sha256(), 0
    file.seek(0)
    while piece := file.read(int(min(_READ_BYTES, limit_bytes - size_bytes))):
        digest.update(piece)
        size_bytes += len(piece)
    return digest.hexdigest(), size_bytes
