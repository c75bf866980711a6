"""Puts the blobs of an artifact together that come in pieces: small ones in memory, and what is much in a file."""

from __future__ import annotations

import asyncio
import hashlib
from functools import cached_property
from io import BytesIO

from compilefarm.core.contents import Content, FileContent, FilePart
from compilefarm.v1.child_pb2 import ChildBlob

# Of all blobs together that are held in memory. Most artifacts are smaller, and never touch a disk before the store.
MEMORY_BYTES = 8 * 1024 * 1024


class SpoolingAssembly:
    """Puts blobs together of which the pieces come one after the other, and computes their digests, in threads.

    What it holds in memory is bounded, whatever their number: a child may send as many small ones as it likes.
    """

    def __init__(self) -> None:
        self._left_bytes = MEMORY_BYTES
        self._begun = _Begun(self)

    async def add(self, piece: ChildBlob) -> tuple[str, Content] | None:
        """Digest and content of a blob, if this is its last piece.

        Raises:
            OSError: there is no room among the temporary files for what memory does not hold.
        """
        await asyncio.to_thread(self._begun.write, piece.content)
        if piece.continues:
            return None
        whole, self._begun = self._begun, _Begun(self)
        return whole.digest, whole.content

    def take(self, size_bytes: int) -> bool:
        """Takes memory for a blob; returns whether there is so much left."""
        if size_bytes > self._left_bytes:
            return False
        self._left_bytes -= size_bytes
        return True

    def give_back(self, size_bytes: int) -> None:
        """Gives memory back that was taken."""
        self._left_bytes += size_bytes

    @cached_property
    def file(self) -> FileContent:
        """Where all blobs lie for which no memory was left: one file, since each that is open counts."""
        return FileContent()


class _Begun:
    """A blob of which some pieces have come."""

    def __init__(self, assembly: SpoolingAssembly) -> None:
        self._assembly = assembly
        self._digest = hashlib.sha256()
        self._memory = BytesIO()
        self._part: FilePart | None = None

    def write(self, piece: bytes) -> None:
        self._digest.update(piece)
        if self._part is None and not self._assembly.take(len(piece)):
            held = self._memory.getvalue()
            self._part, self._memory = FilePart(self._assembly.file), BytesIO()
            self._part.write(held)
            self._assembly.give_back(len(held))
        (self._memory if self._part is None else self._part).write(piece)

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    @property
    def content(self) -> Content:
        return self._memory.getvalue() if self._part is None else self._part
