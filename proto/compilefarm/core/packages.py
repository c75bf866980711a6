"""Packages as they are kept and signed: what can be one, and what its signature covers."""

from __future__ import annotations

from compilefarm.core.digests import check_digest
from compilefarm.core.errors import InvalidRequest
from compilefarm.core.keys import is_key
from compilefarm.v1.package_pb2 import SignedPackage

# Of one package, packed. Those of large models have some hundred kilobytes.
MAX_CONTENT_BYTES = 3 * 1024 * 1024
# Key, name, signature and what the service adds.
MOST_FURTHER_BYTES = 4096
# A signature of the same key for anything else is none of a package.
_TITLE = b"compilefarm package v1\n"


def check_package_key(text: str) -> str:
    """Returns `text` if it can be the key of packages.

    Raises:
        InvalidRequest: it cannot.
    """
    if not is_key(text):
        raise InvalidRequest(f"{text[:100]!r} is no key of packages")
    return text


def check_package(package: SignedPackage) -> SignedPackage:
    """Returns a package that a caller sends, if it can be one. Its content is not looked at.

    Raises:
        InvalidRequest: it cannot.
    """
    check_package_key(package.key)
    check_digest(package.name)
    if not package.HasField("signature"):
        raise InvalidRequest(
            "a package without a signature is installed by nobody: set COMPILEFARM_PACKAGE_SIGNING_KEY"
        )
    size_bytes = len(package.content)
    if not 0 < size_bytes <= MAX_CONTENT_BYTES:
        raise InvalidRequest(f"a package of {size_bytes} bytes: from 1 to {MAX_CONTENT_BYTES} are allowed")
    if package.ByteSize() - size_bytes > MOST_FURTHER_BYTES:
        raise InvalidRequest(f"the description of a package has at most {MOST_FURTHER_BYTES} bytes")
    return package


def signed_content(package: SignedPackage) -> bytes:
    """Returns the bytes that a signature of a package covers: its key, its name and its content."""
    covered = SignedPackage(key=package.key, name=package.name, content=package.content)
    return _TITLE + covered.SerializeToString(deterministic=True)
