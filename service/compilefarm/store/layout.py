"""Where things lie in the store.

cas/<first two digits>/<sha256>               blobs, immutable
ac/<graph digest>/<rest of the key>/<n>       manifests; n = 0, 1, ... are the variants of the key
ac/<graph digest>/<rest>/<namespace>/<n>      the same, where farms tell callers apart by how they are trusted
quarantine/<sha256>                           blobs whose bytes no longer match their digest
quarantine/<key>-<n>                          manifests that are damaged; <key>-<namespace>-<n>
quarantine/<name>.reason                      when and why, in words
checks/<graph digest>/<rest of the key>/[<namespace>/]<sha256>   what checks of artifacts of the key found
used/<path of a blob or a manifest>           empty; its time is when the object was relied upon, roughly
probe/<random>                                written and deleted when a store is opened
"""

from __future__ import annotations

import re

from compilefarm.core.digests import check_digest
from compilefarm.core.errors import InvalidRequest
from compilefarm.core.keys import is_key

BLOBS = "cas"
MANIFESTS = "ac"
# The name of the folder is that of earlier releases; in the gateway, keys are in quarantine.
SET_ASIDE = "quarantine"
USES = "used"
PROBES = "probe"
# Where uploads arrive.
STAGING = "incoming"
# Where manifests lie that belong to no namespace in particular.
DEFAULT_NAMESPACE = ""
# It begins with a letter, unlike the number of a variant.
_NAMESPACE = re.compile(r"[a-z][a-z0-9-]{0,39}")
CHECKS = "checks"
# A key begins with this many digits of its graph's digest, then a dash.
GRAPH_DIGITS = 16


def blob_path(digest: str) -> str:
    """The place of a blob.

    Raises:
        InvalidRequest: `digest` is not written as a digest.
    """
    return f"{BLOBS}/{check_digest(digest)[:2]}/{digest}"


def is_namespace(text: str) -> bool:
    """Whether a text can name a namespace: at most 40 lower-case letters, digits and dashes, a letter first."""
    return _NAMESPACE.fullmatch(text) is not None


def manifest_path(key: str, *, variant: int, namespace: str = DEFAULT_NAMESPACE) -> str:
    """The place of a manifest.

    Raises:
        InvalidRequest: `key` is not written as a key, or `namespace` not as a namespace.
    """
    return f"{key_folder(key)}/{_in_namespace(str(variant), namespace=namespace)}"


def set_aside_path(path: str) -> str:
    """Where a damaged blob or manifest is moved to."""
    area, _, place = path.partition("/")
    return f"{SET_ASIDE}/{place.partition('/')[2] if area == BLOBS else place.replace('/', '-')}"


def reason_path(path: str) -> str:
    """Where it is said why a blob or a manifest was moved."""
    return f"{set_aside_path(path)}.reason"


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


def namespace_of(path: str) -> str:
    """The namespace in which a manifest or a check lies."""
    return "/".join(path.split("/")[3:-1])


def check_folder(key: str) -> str:
    """The folder of what checks found of a key's artifacts.

    Raises:
        InvalidRequest: `key` is not written as a key.
    """
    return f"{CHECKS}{key_folder(key).removeprefix(MANIFESTS)}"


def check_path(key: str, *, digest: str, namespace: str = DEFAULT_NAMESPACE) -> str:
    """The place of what a check found.

    Raises:
        InvalidRequest: `key` is not written as a key, or `namespace` not as a namespace.
    """
    return f"{check_folder(key)}/{_in_namespace(digest, namespace=namespace)}"


def key_of(path: str) -> str:
    """The key under which a manifest or a check lies."""
    return "-".join(path.split("/")[1:3])


def _in_namespace(name: str, *, namespace: str) -> str:
    if namespace and not is_namespace(namespace):
        raise InvalidRequest(f"{namespace[:100]!r} is not the name of a namespace")
    return f"{namespace}/{name}" if namespace else name
