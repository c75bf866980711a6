"""Puts blobs together that come in pieces, large ones in a file."""

from __future__ import annotations

import asyncio
import hashlib
from io import BytesIO

from compilefarm.core.contents import Content, FileContent
from compilefarm.v1.child_pb2 import ChildBlob

# Most artifacts are smaller, and never touch a disk before the store.
LARGE_BYTES = 8 * 1024 * 1024


class SpoolingAssembly:
    """Puts blobs together of which the pieces come one after the other, and computes their digests, in threads."""

    def __init__(self) -> None:
        self._begun = _Begun()

    async def add(self, piece: ChildBlob) -> tuple[str, Content] | None:
        """Digest and content of a blob, if this is its last piece.

        Raises:
            OSError: there is no room for a large one among the temporary files.
        """
        await asyncio.to_thread(self._begun.write, piece.content)
        if piece.continues:
            return None
        whole, self._begun = self._begun, _Begun()
        return whole.digest, whole.content


class _Begun:
    """A blob of which some pieces have come."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._memory = BytesIO()
        self._file: FileContent | None = None

    def write(self, piece: bytes) -> None:
        self._digest.update(piece)
        if self._file is None and self._memory.tell() + len(piece) > LARGE_BYTES:
            self._file = FileContent()
            self._file.write(self._memory.getvalue())
            self._memory = BytesIO()
        (self._file or self._memory).write(piece)

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    @property
    def content(self) -> Content:
        return self._memory.getvalue() if self._file is None else self._file
