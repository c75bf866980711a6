"""Bytes on a pipe in pieces: whoever reads them, or writes them, does something else in between."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO

from compilefarm.core.contents import Content
from compilefarm.v1.child_pb2 import ChildBlob

PIECE_BYTES = 1024 * 1024


def pieces_of(digest: str, content: Content) -> Iterator[ChildBlob]:
    """The messages that carry a blob; one for an empty one."""
    for start in range(0, len(content) or 1, PIECE_BYTES):
        end = start + PIECE_BYTES
        yield ChildBlob(digest=digest, content=content[start:end], continues=end < len(content))


class Assembly:
    """Puts blobs together of which the pieces come one after the other."""

    def __init__(self) -> None:
        self._begun = BytesIO()

    def add(self, piece: ChildBlob) -> bytes | None:
        """The bytes of a blob, if this is its last piece."""
        self._begun.write(piece.content)
        if piece.continues:
            return None
        begun, self._begun = self._begun, BytesIO()
        # It copies nothing.
        return begun.getvalue()
