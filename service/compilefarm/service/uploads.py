"""A blob that arrives in pieces."""

from __future__ import annotations

from compilefarm.core.digests import check_digest
from compilefarm.core.errors import InvalidRequest

MAX_CHUNK_BYTES = 1024 * 1024


class Upload:
    """Puts the pieces of one blob together. Nothing of it is kept unless all of it has arrived."""

    def __init__(self, digest: str, *, max_bytes: int) -> None:
        """Begins with no pieces.

        Raises:
            InvalidRequest: `digest` is not written as a digest.
        """
        self.digest = check_digest(digest)
        self.size_bytes = 0
        self._max_bytes = max_bytes
        self._chunks: list[bytes] = []

    def add(self, chunk: bytes, *, offset_bytes: int) -> None:
        """Adds the next piece.

        Raises:
            InvalidRequest: it is not the next piece, or too much.
        """
        if offset_bytes != self.size_bytes:
            raise InvalidRequest(
                f"a piece of blob {self.digest} begins at byte {offset_bytes}, but {self.size_bytes} bytes came before"
            )
        if len(chunk) > MAX_CHUNK_BYTES:
            raise InvalidRequest(f"a piece of {len(chunk)} bytes is too large: at most {MAX_CHUNK_BYTES} are allowed")
        self.size_bytes += len(chunk)
        if self.size_bytes > self._max_bytes:
            raise InvalidRequest(f"blob {self.digest} is larger than the {self._max_bytes} bytes that are allowed")
        self._chunks.append(chunk)

    def content(self) -> bytes:
        """The blob as it has arrived so far."""
        return b"".join(self._chunks)
