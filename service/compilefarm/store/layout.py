"""Where things lie in the store.

cas/<first two digits>/<sha256>               blobs, immutable
ac/<graph digest>/<rest of the key>/<n>       manifests; n = 0, 1, ... are the variants of the key
quarantine/<sha256>                           blobs whose bytes no longer match their digest
quarantine/<key>-<n>                          manifests that are damaged
quarantine/<name>.reason                      when and why, in words
checks/<graph digest>/<rest of the key>/<sha256>   what checks of artifacts of the key found
used/<path of a blob or a manifest>           empty; its time is when the object was relied upon, roughly
probe/<random>                                written and deleted when a store is opened
"""

from __future__ import annotations

from compilefarm.core.digests import check_digest
from compilefarm.core.errors import InvalidRequest
from compilefarm.core.keys import is_key

BLOBS = "cas"
MANIFESTS = "ac"
QUARANTINE = "quarantine"
USES = "used"
PROBES = "probe"
CHECKS = "checks"
# A key begins with this many digits of its graph's digest, then a dash.
GRAPH_DIGITS = 16


def blob_path(digest: str) -> str:
    """The place of a blob.

    Raises:
        InvalidRequest: `digest` is not written as a digest.
    """
    return f"{BLOBS}/{check_digest(digest)[:2]}/{digest}"


def manifest_path(key: str, *, variant: int) -> str:
    """The place of a manifest.

    Raises:
        InvalidRequest: `key` is not written as a key.
    """
    return f"{key_folder(key)}/{variant}"


def quarantine_path(path: str) -> str:
    """Where a damaged blob or manifest is moved to."""
    area, _, place = path.partition("/")
    return f"{QUARANTINE}/{place.partition('/')[2] if area == BLOBS else place.replace('/', '-')}"


def reason_path(path: str) -> str:
    """Where it is said why a blob or a manifest was moved."""
    return f"{quarantine_path(path)}.reason"


def use_path(path: str) -> str:
    """The object whose time says when a blob or a manifest was relied upon."""
    return f"{USES}/{path}"


def key_folder(key: str) -> str:
    """The folder of a key's manifests.

    Raises:
        InvalidRequest: `key` is not written as a key.
    """
    if not is_key(key):
        raise InvalidRequest(f"{key[:100]!r} is not a key: `compilefarm inspect` and the client's log show whole keys")
    return f"{MANIFESTS}/{key[:GRAPH_DIGITS]}/{key[GRAPH_DIGITS + 1 :]}"


def check_folder(key: str) -> str:
    """The folder of what checks found of a key's artifacts.

    Raises:
        InvalidRequest: `key` is not written as a key.
    """
    return f"{CHECKS}{key_folder(key).removeprefix(MANIFESTS)}"


def key_of_manifest(path: str) -> str:
    """The key under which a manifest lies."""
    return "-".join(path.split("/")[1:3])
