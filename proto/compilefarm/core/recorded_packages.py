"""Packages of Dynamo in a recording: what a process published, as it signed it, so that whoever prewarms a farm can
publish it there without the key.

A package has its name in the folder from its key and its name among others of the key; recording.json has the digest of
the file, which notices cut and changed ones.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from compilefarm.core.digests import digest_of
from compilefarm.core.errors import DamagedRecording, InvalidRequest
from compilefarm.core.packages import MAX_CONTENT_BYTES, check_package
from compilefarm.core.regular_files import open_regular
from compilefarm.v1.package_pb2 import SignedPackage

PACKAGES = "packages"
SUFFIX = ".cfpkg"
# As `file_of_package` makes them: no other text becomes a path.
_FILE = re.compile(rf"{PACKAGES}/[0-9a-f]{{16}}-[0-9a-f]{{32}}{re.escape(SUFFIX)}")
_AGAIN = "record the workload again, or copy the recording whole"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedPackage:
    """A package that a workload published.

    Attributes:
        package: it, signed.
        file: where it lies, below the folder of the recording.
        function: the qualified name of its function.
    """

    package: SignedPackage
    file: str
    function: str


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Unpublished:
    """A function of which nothing was published: every process traces it.

    Attributes:
        function: its qualified name.
        reason: why, for people.
    """

    function: str
    reason: str

    def __post_init__(self) -> None:
        if not isinstance(self.function, str) or not isinstance(self.reason, str):
            raise ValueError("a text of a function is none")


def file_of_package(package: SignedPackage) -> str:
    """Returns the path of a package below the folder of its recording."""
    named = hashlib.sha256(f"{package.key} {package.name}".encode()).hexdigest()
    return f"{PACKAGES}/{package.key[:16]}-{named[:32]}{SUFFIX}"


def content_of_package(package: SignedPackage) -> bytes:
    """Returns the content of its file: what is signed, and the signature."""
    kept = SignedPackage(key=package.key, name=package.name, content=package.content, signature=package.signature)
    return kept.SerializeToString(deterministic=True)


def words_of_package(content: bytes, *, function: str) -> dict[str, Any]:
    """Returns what recording.json says of a file with that content."""
    return {"function": function, "digest": digest_of(content)}


def check_words_of_package(recorded: dict[str, Any]) -> dict[str, Any]:
    """Returns what recording.json says of a package, if it can.

    Raises:
        KeyError, ValueError: nobody writes that.
    """
    if not all(isinstance(recorded[name], str) for name in ("function", "digest")):
        raise ValueError("a text of a package is none")
    return recorded


def read_package(folder: Path, file: str, recorded: Mapping[str, Any]) -> RecordedPackage:
    """Reads a package of a recording.

    Args:
        folder: of the recording.
        file: below it.
        recorded: what recording.json says of it.

    Raises:
        DamagedRecording: it is not what was recorded.
    """
    package = _package_of(_content(folder, file, digest=recorded["digest"]), path=folder / file)
    if file_of_package(package) != file:
        raise DamagedRecording(f"{folder / file} is another package than its name says: {_AGAIN}")
    return RecordedPackage(package=package, file=file, function=recorded["function"])


def _content(folder: Path, file: str, *, digest: str) -> bytes:
    path = folder / file
    if _FILE.fullmatch(file) is None:
        raise DamagedRecording(f"{folder} names {file!a}, which is no package of a recording: {_AGAIN}")
    try:
        with open_regular(path) as opened:
            content = opened.read(2 * MAX_CONTENT_BYTES) or b""
    except OSError as error:
        raise DamagedRecording(f"{path}, a package, cannot be read ({error.strerror}): {_AGAIN}") from None
    if digest_of(content) != digest:
        raise DamagedRecording(f"{path} holds other bytes than were recorded: {_AGAIN}")
    return content


def _package_of(content: bytes, *, path: Path) -> SignedPackage:
    try:
        return check_package(SignedPackage.FromString(content))
    except (DecodeError, InvalidRequest) as error:
        raise DamagedRecording(f"{path} is no package ({error}): {_AGAIN}") from None
