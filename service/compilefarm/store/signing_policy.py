"""Signing policy: how manifests are signed, and which are served. Manifests without a trusted signature are passed
over, and stay where they are, since another farm may share the storage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from compilefarm.core.errors import UntrustedArtifact
from compilefarm.core.public_keys import PublicKey
from compilefarm.core.signatures import SigningKey, check_signature, check_signature_of_toolchain, with_signature
from compilefarm.v1.gateways_pb2 import ToolchainRecord
from compilefarm.v1.manifest_pb2 import Manifest, Signature


class SigningPolicy(Protocol):
    """Decides how manifests are signed, and which are served."""

    @property
    def public_key(self) -> str:
        """The key with which clients check signatures; empty if nothing is signed."""

    async def announce(self, key: str, *, namespace: str) -> None:
        """Says that somebody asked for a job, before its manifest is made.

        Raises:
            SignerUnavailable: who signs cannot be told.
        """

    async def sign(self, manifest: Manifest) -> Manifest:
        """Returns the manifest as it is to be stored.

        Raises:
            SignerUnavailable: who signs does not answer, or refuses.
        """

    def is_trusted(self, manifest: Manifest) -> bool:
        """Returns whether a stored manifest may be served."""

    def signed_toolchain(self, record: ToolchainRecord) -> ToolchainRecord | None:
        """Returns what is known of a C++ compiler as it is to be stored; None if it cannot be signed, and is not."""

    def is_trusted_toolchain(self, record: ToolchainRecord) -> bool:
        """Returns whether workers may be given what is stored of a C++ compiler."""


class ManifestSigner(Protocol):
    """Signs manifests, with a key of this process or through another one."""

    @property
    def public(self) -> PublicKey:
        """The public half of the key."""

    async def announce(self, key: str, *, namespace: str) -> None:
        """See SigningPolicy.announce."""

    async def signature_of(self, manifest: Manifest) -> Signature:
        """The signature of a manifest.

        Raises:
            SignerUnavailable: who has the key does not answer, or refuses.
        """

    def signature_of_toolchain(self, record: ToolchainRecord) -> Signature | None:
        """The signature of what is known of a C++ compiler; None of who signs manifests alone."""


class UnsignedManifests:
    """Nothing is signed, and whatever is stored is served."""

    @property
    def public_key(self) -> str:
        return ""

    async def announce(self, key: str, *, namespace: str) -> None:
        del key, namespace

    async def sign(self, manifest: Manifest) -> Manifest:
        return manifest

    def is_trusted(self, manifest: Manifest) -> bool:
        del manifest
        return True

    def signed_toolchain(self, record: ToolchainRecord) -> ToolchainRecord | None:
        return record

    def is_trusted_toolchain(self, record: ToolchainRecord) -> bool:
        del record
        return True


UNSIGNED = UnsignedManifests()


class SignedManifests:
    """Manifests are signed, and those are served that the farm has signed, or somebody else whom it trusts.

    Args:
        signer: signs what is stored.
        trusted: whose signatures count beside its own, such as those of the key before.
    """

    def __init__(self, signer: ManifestSigner, *, trusted: Sequence[PublicKey] = ()) -> None:
        self._signer = signer
        self._trusted = (signer.public, *trusted)

    @property
    def public_key(self) -> str:
        return self._signer.public.text

    async def announce(self, key: str, *, namespace: str) -> None:
        await self._signer.announce(key, namespace=namespace)

    async def sign(self, manifest: Manifest) -> Manifest:
        return with_signature(manifest, await self._signer.signature_of(manifest))

    def is_trusted(self, manifest: Manifest) -> bool:
        try:
            check_signature(manifest, trusted=self._trusted)
        except UntrustedArtifact:
            return False
        return True

    def signed_toolchain(self, record: ToolchainRecord) -> ToolchainRecord | None:
        signature = self._signer.signature_of_toolchain(record)
        return None if signature is None else with_signature(record, signature)

    def is_trusted_toolchain(self, record: ToolchainRecord) -> bool:
        try:
            check_signature_of_toolchain(record, trusted=self._trusted)
        except UntrustedArtifact:
            return False
        return True


class LocalSigner:
    """Signs with a key that this process holds.

    Args:
        key: the key.
    """

    def __init__(self, key: SigningKey) -> None:
        self._key = key

    @property
    def public(self) -> PublicKey:
        return self._key.public

    async def announce(self, key: str, *, namespace: str) -> None:
        del key, namespace

    async def signature_of(self, manifest: Manifest) -> Signature:
        return self._key.signature_of(manifest)

    def signature_of_toolchain(self, record: ToolchainRecord) -> Signature | None:
        return self._key.signature_of_toolchain(record)
