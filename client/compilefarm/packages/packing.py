"""Packages as bytes: what Dynamo found out about one code object, with the requests of its programs.

What is read is checked before anything is made of it: its sizes, its layout, the interpreter that it is for, its
programs, and its code. Whether it may be read at all is for its signature to say, before.
"""

from __future__ import annotations

import hashlib
import platform
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from google.protobuf.message import DecodeError

from compilefarm.core.digests import digest_of
from compilefarm.core.dynamo_packages import GlobalKind, Lookup, Variant
from compilefarm.core.keys import Part
from compilefarm.core.packages import MAX_CONTENT_BYTES
from compilefarm.packages.code_checks import InvalidPackage
from compilefarm.packages.frame_decoding import decode_lookup, decode_variant
from compilefarm.packages.frame_encoding import Unsayable, encode_lookup, encode_variant
from compilefarm.packages.key_texts import key_text
from compilefarm.v1 import package_pb2 as wire
from compilefarm.v1.manifest_pb2 import KeyPart

FORMAT = 1
# Bytecode differs from one version to the next.
INTERPRETER = f"{sys.implementation.cache_tag} {platform.python_version()}"
# Of a package, unpacked.
_MAX_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRecord:
    """How a program is asked for.

    Attributes:
        request: whose answer it is, as the content of a request file.
        messages: what the assertions of its graph say, by the number that the request has in the place of each.
    """

    request: bytes
    messages: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What Dynamo found out about one code object.

    Attributes:
        lookup: which code object it is.
        variant: what was found out.
        programs: by the name that the variant has for each.
        key_parts: the parts of the key.
        digest: of its content; empty where it was not read from one.
    """

    lookup: Lookup
    variant: Variant
    programs: Mapping[str, ProgramRecord] = field(default_factory=dict)
    key_parts: Sequence[Part] = ()
    digest: str = field(default="", compare=False)

    @property
    def key(self) -> str:
        """The key by which it is looked for."""
        return key_text(self.lookup, parts=self.key_parts)


def pack(found: Found) -> bytes:
    """Returns the content of a package.

    Raises:
        Unsayable: something has no form on the wire, or the package is larger than any may be.
    """
    package = wire.Package(
        format=FORMAT,
        interpreter=INTERPRETER,
        lookup=encode_lookup(found.lookup),
        variant=encode_variant(found.variant),
        programs=[
            wire.PackagedProgram(name=name, request=program.request, messages=program.messages)
            for name, program in sorted(found.programs.items())
        ],
        key_parts=[KeyPart(name=part.name, digest=part.digest) for part in found.key_parts],
    )
    content = package.SerializeToString(deterministic=True)
    packed = zlib.compress(content)
    if len(content) > _MAX_BYTES or len(packed) > MAX_CONTENT_BYTES:
        raise Unsayable(
            f"a package of {len(content)} bytes, packed {len(packed)}: at most {_MAX_BYTES} and {MAX_CONTENT_BYTES} "
            "are taken"
        )
    return packed


def unpack(content: bytes) -> Found:
    """Reads the content of a package.

    Raises:
        InvalidPackage: it is none, or is for other releases or interpreters.
    """
    return _found(_parse(content))


def read(signed: wire.SignedPackage) -> Found:
    """Reads a package as it is kept, and holds its key and its name against what it says.

    Args:
        signed: it, after its signature was checked.

    Raises:
        InvalidPackage: as `unpack`; or it lies under a key or a name that is another's.
    """
    package = _parse(signed.content)
    found = _found(package)
    if found.key != signed.key:
        raise InvalidPackage(f"it lies under key {signed.key[:33]}..., and what it says has key {found.key[:33]}...")
    name = _name(package, key_id=signed.signature.key_id)
    if name != signed.name:
        raise InvalidPackage(f"it lies under name {signed.name[:16]}..., and what it says has name {name[:16]}...")
    return replace(found, digest=digest_of(signed.content))


def _found(package: wire.Package) -> Found:
    if package.format != FORMAT:
        raise InvalidPackage(f"it has format {package.format}, and this release reads {FORMAT}")
    if package.interpreter != INTERPRETER:
        raise InvalidPackage(f"it is for {package.interpreter[:80]!r}, and this is {INTERPRETER!r}")
    found = Found(
        lookup=decode_lookup(package.lookup),
        variant=decode_variant(package.variant),
        programs={
            each.name: ProgramRecord(request=each.request, messages=tuple(each.messages)) for each in package.programs
        },
        key_parts=tuple(Part(name=part.name, digest=part.digest) for part in package.key_parts),
    )
    named = {each.program for each in found.variant.globals if each.kind is GlobalKind.PROGRAM}
    if named != found.programs.keys() or len(package.programs) != len(named):
        raise InvalidPackage("it holds other programs than its code calls")
    return found


def name_of(found: Found, *, key_id: str) -> str:
    """The name of a package among others of its key: equal if the same person says the same to hold.

    Names of programs and of what generated code calls them differ from process to process, and do not count.

    Args:
        found: what is in it.
        key_id: of the key that signs it.
    """
    package = wire.Package(lookup=encode_lookup(found.lookup), variant=encode_variant(found.variant))
    return _name(package, key_id=key_id)


def _name(package: wire.Package, *, key_id: str) -> str:
    """The name, of a package that nobody needs any more: all but the conditions is taken out of it."""
    for name in ("format", "interpreter", "programs", "key_parts"):
        package.ClearField(name)
    package.variant.ClearField("globals")
    package.variant.ClearField("code")
    return hashlib.sha256(key_id.encode() + b"\n" + package.SerializeToString(deterministic=True)).hexdigest()


def _parse(content: bytes) -> wire.Package:
    stream = zlib.decompressobj()
    try:
        unpacked = stream.decompress(content, _MAX_BYTES)
        if not stream.eof or stream.unused_data:
            raise InvalidPackage(f"it is larger than {_MAX_BYTES} bytes, or it has no end")
        package = wire.Package.FromString(unpacked)
    except (zlib.error, DecodeError) as error:
        raise InvalidPackage(f"it cannot be read: {error}") from None
    package.DiscardUnknownFields()
    if package.ByteSize() != len(unpacked):
        raise InvalidPackage("it says what this release does not know: it is newer")
    return package
