"""The layout of the store: paths of blobs, manifests, checks, notes of use, and what gateways tell each other.

cas/<first two digits>/<sha256>               blobs, immutable
ac/<graph digest>/<rest of the key>/<n>       manifests; n = 0, 1, ... are the variants of the key
ac/<graph digest>/<rest>/<namespace>/<n>      the same, where farms tell callers apart by how they are trusted
set-aside/<sha256>                            blobs whose bytes no longer match their digest
set-aside/<key>-<n>                           manifests that are damaged; <key>-<namespace>-<n>
set-aside/<name>.reason                       when and why, in words
quarantine/                                   what was set aside there before it was called so
checks/<graph digest>/<rest of the key>/[<namespace>/]<sha256>   what verifications of artifacts of the key found
leases/<graph digest>/<rest of the key>/[<namespace>/]<n>         which gateway compiles the key; the highest n counts
leases/<graph digest>/<rest>/[<namespace>/]<n>.failed             the failure in which that compile ended
failures/<graph digest>/<rest>/[<namespace>/]<sha256>             why the key is not compiled for a while
environments/<name>/<sha256>                  what the last worker of a declared environment was
toolchains/<machine>/<sha256>                 what workers have found out about the C++ compiler of their image
gateways/<session>                            empty; renewed while that gateway lives
journal/<session>/<key>-<account>-<sha256>    an accepted prewarm, in the folder of the gateway that has it to do
used/<path of a blob or a manifest>           empty; its time is when the object was last used, roughly
probe/<random>                                written and deleted when a store is opened
"""

from __future__ import annotations

import re

from compilefarm.core.digests import check_digest
from compilefarm.core.errors import InvalidRequest
from compilefarm.core.keys import is_key

BLOBS = "cas"
MANIFESTS = "ac"
SET_ASIDE = "set-aside"
FORMER_SET_ASIDE = "quarantine"
USES = "used"
PROBES = "probe"
# Where uploads arrive.
STAGING = "incoming"
# Where manifests lie that belong to no namespace in particular.
DEFAULT_NAMESPACE = ""
# It begins with a letter, unlike the number of a variant.
_NAMESPACE = re.compile(r"[a-z][a-z0-9-]{0,39}")
CHECKS = "checks"
KEY_LEASES = "leases"
FAILURES = "failures"
ENVIRONMENTS = "environments"
TOOLCHAINS = "toolchains"
SESSIONS = "gateways"
JOURNAL = "journal"
# A key begins with this many digits of its graph's digest, then a dash.
GRAPH_DIGITS = 16


def blob_path(digest: str) -> str:
    """Returns the path of a blob.

    Raises:
        InvalidRequest: `digest` is not written as a digest.
    """
    return f"{BLOBS}/{check_digest(digest)[:2]}/{digest}"


def is_namespace(text: str) -> bool:
    """Returns whether a text can name a namespace: at most 40 lower-case letters, digits and dashes, a letter first."""
    return _NAMESPACE.fullmatch(text) is not None


def manifest_path(key: str, *, variant: int, namespace: str = DEFAULT_NAMESPACE) -> str:
    """Returns the path of a manifest.

    Raises:
        InvalidRequest: `key` is not written as a key, or `namespace` not as a namespace.
    """
    return f"{key_folder(key)}/{_in_namespace(str(variant), namespace=namespace)}"


def set_aside_path(path: str) -> str:
    """Returns the path to which a damaged blob or manifest is moved."""
    area, _, rest = path.partition("/")
    return f"{SET_ASIDE}/{rest.partition('/')[2] if area == BLOBS else rest.replace('/', '-')}"


def reason_path(path: str) -> str:
    """Returns the path of the reason for which a blob or a manifest was moved."""
    return f"{set_aside_path(path)}.reason"


def use_path(path: str) -> str:
    """Returns the path of the object whose time says when a blob or a manifest was last used."""
    return f"{USES}/{path}"


def key_folder(key: str) -> str:
    """Returns the folder of a key's manifests.

    Raises:
        InvalidRequest: `key` is not written as a key.
    """
    if not is_key(key):
        raise InvalidRequest(f"{key[:100]!r} is not a key: `compilefarm inspect` and the client's log show whole keys")
    return f"{MANIFESTS}/{key[:GRAPH_DIGITS]}/{key[GRAPH_DIGITS + 1 :]}"


def namespace_of(path: str) -> str:
    """Returns the namespace of the manifest, check or lease at a path."""
    return "/".join(path.split("/")[3:-1])


def check_folder(key: str) -> str:
    """Returns the folder of the checks of a key's artifacts.

    Raises:
        InvalidRequest: `key` is not written as a key.
    """
    return f"{CHECKS}{key_folder(key).removeprefix(MANIFESTS)}"


def check_path(key: str, *, digest: str, namespace: str = DEFAULT_NAMESPACE) -> str:
    """Returns the path of a check.

    Raises:
        InvalidRequest: `key` is not written as a key, or `namespace` not as a namespace.
    """
    return f"{check_folder(key)}/{_in_namespace(digest, namespace=namespace)}"


def lease_folder(key: str) -> str:
    """Returns the folder of the leases of a key, in every namespace.

    Raises:
        InvalidRequest: `key` is not written as a key.
    """
    return f"{KEY_LEASES}{key_folder(key).removeprefix(MANIFESTS)}"


def lease_path(key: str, *, number: int, namespace: str = DEFAULT_NAMESPACE) -> str:
    """Returns the path of a lease of a key.

    Raises:
        InvalidRequest: `key` is not written as a key, or `namespace` not as a namespace.
    """
    return f"{lease_folder(key)}/{_in_namespace(str(number), namespace=namespace)}"


def failure_path(lease: str) -> str:
    """Returns the path of the failure in which the compile ended that had the lease at a path."""
    return f"{lease}.failed"


def failure_folder(key: str) -> str:
    """Returns the folder of what is remembered of failed compiles of a key.

    Raises:
        InvalidRequest: `key` is not written as a key.
    """
    return f"{FAILURES}{key_folder(key).removeprefix(MANIFESTS)}"


def remembered_path(key: str, *, digest: str, namespace: str = DEFAULT_NAMESPACE) -> str:
    """Returns the path of what is remembered of one failed compile.

    Raises:
        InvalidRequest: `key` is not written as a key, or `namespace` not as a namespace.
    """
    return f"{failure_folder(key)}/{_in_namespace(digest, namespace=namespace)}"


def session_path(session: str) -> str:
    """Returns the path of the object that says that a gateway lives."""
    return f"{SESSIONS}/{session}"


def journal_path(session: str, *, name: str) -> str:
    """Returns the path of an entry of the journal."""
    return f"{JOURNAL}/{session}/{name}"


def key_of(path: str) -> str:
    """Returns the key of the manifest, check or lease at a path."""
    return "-".join(path.split("/")[1:3])


def _in_namespace(name: str, *, namespace: str) -> str:
    if namespace and not is_namespace(namespace):
        raise InvalidRequest(f"{namespace[:100]!r} is not the name of a namespace")
    return f"{namespace}/{name}" if namespace else name
