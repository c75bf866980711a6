"""The key of packages as text: 16 digits of what names the function, and a digest of all parts."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from compilefarm.core.dynamo_packages import Lookup
from compilefarm.core.keys import Part

# A new one whenever equal parts must not find what older releases stored.
FORMAT = 1


def key_text(lookup: Lookup, *, parts: Sequence[Part]) -> str:
    """Returns the key of packages for a code object.

    Args:
        lookup: which it is, and how torch.compile was called.
        parts: all that the key is made of, in order.
    """
    whole = hashlib.sha256(f"compilefarm package {FORMAT}\n".encode())
    for part in parts:
        whole.update(f"{part.name} {part.digest}\n".encode())
    named = hashlib.sha256(repr(lookup).encode("utf-8", "surrogatepass")).hexdigest()
    return f"{named[:16]}-{whole.hexdigest()}"
