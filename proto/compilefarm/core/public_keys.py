"""Public keys as text: "ed25519:" and 32 bytes in base64."""

from __future__ import annotations

import base64
import binascii
import hashlib
from dataclasses import dataclass

_PREFIX = "ed25519:"
_LENGTH = 32


@dataclass(frozen=True, slots=True)
class PublicKey:
    """The public half of a key that signs artifacts.

    Attributes:
        content: its 32 bytes (RFC 8032).
    """

    content: bytes

    @property
    def text(self) -> str:
        """The key as text."""
        return f"{_PREFIX}{base64.b64encode(self.content).decode()}"

    @property
    def key_id(self) -> str:
        """The id by which signatures name the key."""
        return hashlib.sha256(self.content).hexdigest()[:16]


def read_public_key(text: str) -> PublicKey:
    """Reads a key from text.

    Raises:
        ValueError: none is.
    """
    try:
        content = base64.b64decode(text.removeprefix(_PREFIX), validate=True)
    except binascii.Error:
        content = b""
    if not text.startswith(_PREFIX) or len(content) != _LENGTH:
        raise ValueError(f"{text[:100]!r} is no public key: `compilefarm keys public FILE` prints one (ed25519:...)")
    return PublicKey(content)
