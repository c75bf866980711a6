"""Where things lie in the store.

cas/<first two digits>/<sha256>               blobs, immutable
ac/<graph digest>/<rest of the key>/<n>       manifests; n = 0, 1, ... are the variants of the key
quarantine/<sha256>                           blobs whose bytes no longer match their digest
"""

from __future__ import annotations

from compilefarm.core.digests import check_digest
from compilefarm.core.errors import InvalidRequest
from compilefarm.core.keys import is_key

BLOBS = "cas"
MANIFESTS = "ac"
QUARANTINE = "quarantine"
# A key begins with this many digits of its graph's digest, then a dash.
GRAPH_DIGITS = 16


def blob_path(digest: str) -> str:
    """The place of a blob.

    Raises:
        InvalidRequest: `digest` is not written as a digest.
    """
    return f"{BLOBS}/{check_digest(digest)[:2]}/{digest}"


def quarantine_path(digest: str) -> str:
    """Where a corrupt blob is moved to."""
    return f"{QUARANTINE}/{check_digest(digest)}"


def manifest_path(key: str, *, variant: int) -> str:
    """The place of a manifest.

    Raises:
        InvalidRequest: `key` is not written as a key.
    """
    if not is_key(key):
        raise InvalidRequest(f"{key[:100]!r} is not a key: `compilefarm inspect` and the client's log show whole keys")
    return f"{MANIFESTS}/{key[:GRAPH_DIGITS]}/{key[GRAPH_DIGITS + 1 :]}/{variant}"
