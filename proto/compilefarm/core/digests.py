"""Digests: sha256 in lower-case hex, everywhere."""

from __future__ import annotations

import hashlib
import re

from compilefarm.core.errors import InvalidRequest

DIGEST_LENGTH = 64
_DIGEST = re.compile(r"[0-9a-f]{64}")


def digest_of(content: bytes | memoryview) -> str:
    """Returns the digest of `content`."""
    return hashlib.sha256(content).hexdigest()


def is_digest(text: str) -> bool:
    """Returns whether `text` is written as a digest."""
    return _DIGEST.fullmatch(text) is not None


def check_digest(text: str) -> str:
    """Returns `text` if it is written as a digest.

    Raises:
        InvalidRequest: it is not.
    """
    if not is_digest(text):
        raise InvalidRequest(f"{text[:80]!r} is not a digest: 64 lower-case hexadecimal digits are expected")
    return text
