"""Signatures of artifacts: the owner of the private key says that the farm made the artifact for the key of a job.
Those of entries of torch's caches and of packages say who wrote them; what a farm knows of C++ compilers it signs as
it does artifacts.

What is signed is a line of text and the manifest, serialized without its signature. The fields of a message are
serialized in the order of their numbers, those that a release does not know after those that it knows: as long as new
fields get higher numbers than the old ones, all releases of protobuf and of Compilefarm see the same bytes. All that a
manifest says is signed: the key and its parts, digests and sizes of the blobs, guards, environment, format, namespace.

Needs the package `cryptography`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from compilefarm.core import cache_entries, packages
from compilefarm.core.errors import UntrustedArtifact
from compilefarm.core.public_keys import PublicKey
from compilefarm.v1.cache_service_pb2 import CacheEntry
from compilefarm.v1.gateways_pb2 import ToolchainRecord
from compilefarm.v1.manifest_pb2 import Manifest, Signature
from compilefarm.v1.package_pb2 import SignedPackage

# A signature of this key for anything else is none of a manifest.
_TITLE = b"compilefarm manifest v1\n"
_TOOLCHAIN_TITLE = b"compilefarm toolchain v1\n"
_Signed = TypeVar("_Signed", Manifest, ToolchainRecord)


class SigningKey:
    """The private half of a signing key. Its repr does not show it.

    Attributes:
        public: the public half.
    """

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private
        self.public = PublicKey(private.public_key().public_bytes_raw())

    def signature_of(self, manifest: Manifest) -> Signature:
        """Returns the signature of a manifest, ignoring one that it has."""
        return self._signature(signed_content(manifest))

    def signature_of_entry(self, entry: CacheEntry) -> Signature:
        """Returns the signature of a cache entry, ignoring one that it has."""
        return self._signature(cache_entries.signed_content(entry))

    def signature_of_package(self, package: SignedPackage) -> Signature:
        """Returns the signature of a package, ignoring one that it has."""
        return self._signature(packages.signed_content(package))

    def signature_of_toolchain(self, record: ToolchainRecord) -> Signature:
        """Returns the signature of what is known of a C++ compiler, ignoring one that it has."""
        return self._signature(_signed_toolchain(record))

    def sign(self, manifest: Manifest) -> Manifest:
        """A copy of a manifest, signed."""
        return with_signature(manifest, self.signature_of(manifest))

    def pem(self) -> bytes:
        """The key for a file: PKCS #8 in PEM."""
        return self._private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    def _signature(self, content: bytes) -> Signature:
        return Signature(key_id=self.public.key_id, value=self._private.sign(content))


def with_signature(unsigned: _Signed, signature: Signature) -> _Signed:
    """Returns a copy of a message with that signature."""
    signed = type(unsigned)()
    signed.CopyFrom(unsigned)
    signed.signature.CopyFrom(signature)
    return signed


def new_signing_key() -> SigningKey:
    """Makes a new key."""
    return SigningKey(Ed25519PrivateKey.generate())


def read_signing_key(pem: bytes) -> SigningKey:
    """Reads a key from the content of a file.

    Raises:
        ValueError: it holds none.
    """
    try:
        private = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ValueError(f"it is no private key in PEM without a password ({error})") from None
    if not isinstance(private, Ed25519PrivateKey):
        raise ValueError("it is a key of another kind than ed25519")
    return SigningKey(private)


def check_signature(manifest: Manifest, *, trusted: Sequence[PublicKey]) -> None:
    """Passes if a trusted key has signed a manifest.

    Raises:
        UntrustedArtifact: nobody has.
    """
    if not manifest.HasField("signature"):
        raise UntrustedArtifact("the artifact is not signed: the farm has to `serve --signing-key`")
    _check(manifest.signature, signed_content(manifest), trusted=trusted, what="the artifact")


def check_signature_of_entry(entry: CacheEntry, *, trusted: Sequence[PublicKey]) -> None:
    """Passes if a trusted key has signed a cache entry.

    Raises:
        UntrustedArtifact: nobody has.
    """
    if not entry.HasField("signature"):
        raise UntrustedArtifact("the cache entry is not signed: who writes it needs COMPILEFARM_CACHE_SIGNING_KEY")
    _check(entry.signature, cache_entries.signed_content(entry), trusted=trusted, what="the cache entry")


def check_signature_of_package(package: SignedPackage, *, trusted: Sequence[PublicKey]) -> None:
    """Passes if a trusted key has signed a package.

    Raises:
        UntrustedArtifact: nobody has.
    """
    if not package.HasField("signature"):
        raise UntrustedArtifact("the package is not signed: who publishes it needs COMPILEFARM_PACKAGE_SIGNING_KEY")
    _check(package.signature, packages.signed_content(package), trusted=trusted, what="the package")


def check_signature_of_toolchain(record: ToolchainRecord, *, trusted: Sequence[PublicKey]) -> None:
    """Passes if a trusted key has signed what is known of a C++ compiler.

    Raises:
        UntrustedArtifact: nobody has.
    """
    if not record.HasField("signature"):
        raise UntrustedArtifact("what is known of the C++ compiler is not signed")
    _check(record.signature, _signed_toolchain(record), trusted=trusted, what="what is known of the C++ compiler")


def signed_content(manifest: Manifest) -> bytes:
    """Returns the bytes that a signature of a manifest covers."""
    return _TITLE + _without_signature(manifest)


def _signed_toolchain(record: ToolchainRecord) -> bytes:
    return _TOOLCHAIN_TITLE + _without_signature(record)


def _without_signature(signed: _Signed) -> bytes:
    unsigned = type(signed)()
    unsigned.CopyFrom(signed)
    unsigned.ClearField("signature")
    return unsigned.SerializeToString(deterministic=True)


def _check(signature: Signature, content: bytes, *, trusted: Sequence[PublicKey], what: str) -> None:
    key_id = signature.key_id
    key = next((key for key in trusted if key.key_id == key_id), None)
    if key is None:
        raise UntrustedArtifact(
            f"{what} is signed by key {key_id[:16]!r}, and trusted are {', '.join(key.key_id for key in trusted)}"
        )
    try:
        Ed25519PublicKey.from_public_bytes(key.content).verify(signature.value, content)
    except InvalidSignature:
        raise UntrustedArtifact(
            f"the signature of {what} does not fit: it was changed after {key_id} had signed it"
        ) from None
