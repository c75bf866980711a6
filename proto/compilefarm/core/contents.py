"""Contents of blobs: bytes in memory, or in a file, so that large ones are not held in memory."""

from __future__ import annotations

import os
import tempfile
import weakref
from typing import Protocol


class Content(Protocol):
    """What a blob consists of: its length, and parts of it. Bytes are one."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> bytes: ...


class FileContent:
    """A content in a file without a name, in the folder for temporary files. It goes with the last who has it.

    Raises:
        OSError: the file cannot be made.
    """

    def __init__(self) -> None:
        self._file = _open_without_name()
        self._size_bytes = 0
        weakref.finalize(self, os.close, self._file)

    def write(self, piece: bytes) -> None:
        """Adds a piece at the end.

        Raises:
            OSError: the disk is full.
        """
        left = memoryview(piece)
        while left:
            written = os.write(self._file, left)
            self._size_bytes += written
            left = left[written:]

    def __len__(self) -> int:
        return self._size_bytes

    def __getitem__(self, part: slice) -> bytes:
        start, end = _bounds(part, self._size_bytes)
        # Others read the same file.
        return os.pread(self._file, max(end - start, 0), start)


class FilePart:
    """A content within a file that several lie in, one after the other: it begins where the file ended."""

    def __init__(self, file: FileContent) -> None:
        self._file, self._start, self._size_bytes = file, len(file), 0

    def write(self, piece: bytes) -> None:
        """Adds a piece at the end; no other content may have been begun in the file since.

        Raises:
            OSError: the disk is full.
        """
        self._file.write(piece)
        self._size_bytes += len(piece)

    def __len__(self) -> int:
        return self._size_bytes

    def __getitem__(self, part: slice) -> bytes:
        start, end = _bounds(part, self._size_bytes)
        return self._file[self._start + start : self._start + end]


def _bounds(part: slice, size_bytes: int) -> tuple[int, int]:
    """Where a part of a content begins and ends."""
    start, end, step = part.indices(size_bytes)
    assert step == 1, "a part of a content has no gaps"
    return start, end


def _open_without_name() -> int:
    descriptor, path = tempfile.mkstemp(prefix="compilefarm-")
    os.unlink(path)
    return descriptor
