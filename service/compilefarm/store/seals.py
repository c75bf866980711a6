"""Which manifests are served: those that somebody vouches for. Others are passed over as if they were not there, and
stay where they are, since another farm may share the storage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from compilefarm.core.errors import UntrustedArtifact
from compilefarm.core.public_keys import PublicKey
from compilefarm.core.signatures import SigningKey, check_signature
from compilefarm.v1.manifest_pb2 import Manifest


class Seal(Protocol):
    """Vouches for manifests."""

    @property
    def public_key(self) -> str:
        """With which clients see that it does; empty if they cannot."""

    def put(self, manifest: Manifest) -> Manifest:
        """A manifest as it is to be stored."""

    def holds(self, manifest: Manifest) -> bool:
        """Whether a manifest that was stored may be served."""


class NoSeal:
    """Whatever is stored is served."""

    @property
    def public_key(self) -> str:
        return ""

    def put(self, manifest: Manifest) -> Manifest:
        return manifest

    def holds(self, manifest: Manifest) -> bool:
        del manifest
        return True


class SignatureSeal:
    """Serves what the farm has signed, or somebody else whom it trusts.

    Args:
        key: signs what is stored.
        trusted: whose signatures count beside its own, such as those of the key before.
    """

    def __init__(self, key: SigningKey, *, trusted: Sequence[PublicKey] = ()) -> None:
        self._key = key
        self._trusted = (key.public, *trusted)

    @property
    def public_key(self) -> str:
        return self._key.public.text

    def put(self, manifest: Manifest) -> Manifest:
        return self._key.sign(manifest)

    def holds(self, manifest: Manifest) -> bool:
        try:
            check_signature(manifest, trusted=self._trusted)
        except UntrustedArtifact:
            return False
        return True
