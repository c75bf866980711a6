"""The format of stored manifests, with a digest that shows any changed bit.

A record is a line of text that names the digest of all that follows, a line with the version of the record, and the
serialized manifest. Later versions may have more in the second line.
"""

from __future__ import annotations

from google.protobuf.message import DecodeError

from compilefarm.core.artifacts import ARTIFACT_FORMAT, blobs_of
from compilefarm.core.digests import DIGEST_LENGTH, check_digest, digest_of
from compilefarm.core.errors import InvalidRequest
from compilefarm.core.expressions import MAX_SYMBOLS, check_guards
from compilefarm.store.layout import DEFAULT_NAMESPACE
from compilefarm.v1.manifest_pb2 import Manifest

_TITLE = b"compilefarm manifest sha256:"
_VERSION = b"1\n"


class DamagedRecord(Exception):
    """The bytes are not those that were written; the message says how that shows."""


class NewerRecord(Exception):
    """A newer release wrote the record in a format that this one cannot read."""


class OlderRecord(Exception):
    """An older release wrote the record, in a format that this one does not serve.

    Attributes:
        manifest: what it says, of which fields that are there in both formats mean the same.
    """

    def __init__(self, manifest: Manifest) -> None:
        super().__init__(f"it has format {manifest.format}")
        self.manifest = manifest


def write_record(manifest: Manifest) -> bytes:
    """Returns the bytes of a manifest in the store."""
    covered = _VERSION + manifest.SerializeToString(deterministic=True)
    return _TITLE + digest_of(covered).encode() + b"\n" + covered


def read_record(content: bytes, *, key: str, namespace: str = DEFAULT_NAMESPACE, with_guards: bool = True) -> Manifest:
    """Returns the manifest that was stored under a key in a namespace.

    Args:
        content: of the record.
        key: the key.
        namespace: the namespace.
        with_guards: whether its guards are checked, too, which may take tens of milliseconds (see GuardTurns).

    Raises:
        NewerRecord: this release cannot read it.
        OlderRecord: this release does not serve it.
        DamagedRecord: the bytes were changed, or belong to another key or namespace.
    """
    covered = content[len(_TITLE) + DIGEST_LENGTH + 1 :]
    if content != _TITLE + digest_of(covered).encode() + b"\n" + covered:
        raise DamagedRecord("its bytes do not match its digest")
    if not covered.startswith(_VERSION):
        raise NewerRecord
    try:
        manifest = Manifest.FromString(covered.removeprefix(_VERSION))
        if manifest.key != key:
            raise DamagedRecord(f"it is the manifest of {manifest.key[:100]!r}")
        if manifest.namespace != namespace:
            raise DamagedRecord(f"it is a manifest of namespace {manifest.namespace[:100]!r}")
        if manifest.format > ARTIFACT_FORMAT:
            raise NewerRecord
        for blob in blobs_of(manifest):
            check_digest(blob.digest)
        if manifest.format < ARTIFACT_FORMAT:
            raise OlderRecord(manifest)
        if with_guards:
            check_guards(manifest.guards, symbols=MAX_SYMBOLS, what="a guard")
    except (DecodeError, InvalidRequest) as error:
        raise DamagedRecord(f"it was written wrongly: {error}") from error
    return manifest
