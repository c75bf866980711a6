"""Signatures cover all that a manifest says, and are the same with every release of protobuf."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from compilefarm.core.digests import digest_of
from compilefarm.core.errors import UntrustedArtifact
from compilefarm.core.public_keys import read_public_key
from compilefarm.core.signatures import (
    check_signature,
    check_signature_of_entry,
    check_signature_of_package,
    check_signature_of_toolchain,
    new_signing_key,
    read_signing_key,
    signed_content,
)
from compilefarm.v1.cache_service_pb2 import CacheEntry
from compilefarm.v1.environment_pb2 import Cpu, Environment
from compilefarm.v1.gateways_pb2 import ToolchainRecord
from compilefarm.v1.graph_pb2 import Expression
from compilefarm.v1.job_pb2 import PHASE_COMPILING
from compilefarm.v1.manifest_pb2 import (
    BUILDER_INDUCTOR,
    ENCODING_ZLIB,
    VERIFY_TIME_BEFORE,
    Blob,
    KeyPart,
    Library,
    Manifest,
    Signature,
    Timing,
    Verification,
)
from compilefarm.v1.package_pb2 import SignedPackage

BLOB = Blob(digest="ab" * 32, size_bytes=7, encoding=ENCODING_ZLIB, content_size_bytes=9)
MANIFEST = Manifest(
    key="0123456789abcdef-" + "cd" * 32,
    key_parts=[KeyPart(name="graph", digest="ef" * 32)],
    format=1,
    environment=Environment(torch="2.11.0", cpu=Cpu(architecture="x86_64", instruction_sets=["avx2", "fma"])),
    program=BLOB,
    libraries=[Library(source_digest="12" * 32, name="ä", blob=BLOB, builder=BUILDER_INDUCTOR)],
    guards=[Expression(symbol=3)],
    timings=[Timing(phase=PHASE_COMPILING, seconds=1.5)],
    verification=Verification(largest_difference=1e-6, subprocesses=0),
    worker="worker-0",
    farm_version="0.1.0",
    sources=BLOB,
    namespace="prod",
    verify_time=VERIFY_TIME_BEFORE,
    key_format=3,
)
MANIFEST.created.FromSeconds(1_800_000_000)


def test_what_is_signed_is_the_same_everywhere() -> None:
    # Made with protobuf 7; 4.25 has to agree, and so have releases to come: signatures are kept for years.
    older = Manifest.FromString(MANIFEST.SerializeToString())
    older.ClearField("key_format")
    assert digest_of(signed_content(older)) == "5c46eff3ad7fb3b8c15995f7681db77e08825d628d80180dd13338557486e1d5"
    assert signed_content(MANIFEST) == signed_content(older) + b"\x88\x01\x03"


def test_a_signature_of_one_thing_is_none_of_another() -> None:
    key = new_signing_key()
    signatures = [
        key.signature_of(Manifest()),
        key.signature_of_entry(CacheEntry()),
        key.signature_of_package(SignedPackage()),
        key.signature_of_toolchain(ToolchainRecord()),
    ]
    checks: Sequence[tuple[Callable[..., None], Callable[[Signature], object]]] = (
        (check_signature, lambda signature: Manifest(signature=signature)),
        (check_signature_of_entry, lambda signature: CacheEntry(signature=signature)),
        (check_signature_of_package, lambda signature: SignedPackage(signature=signature)),
        (check_signature_of_toolchain, lambda signature: ToolchainRecord(signature=signature)),
    )
    for own, (check, signed_with) in zip(signatures, checks, strict=True):
        check(signed_with(own), trusted=[key.public])
        for other in (each for each in signatures if each is not own):
            with pytest.raises(UntrustedArtifact, match="does not fit"):
                check(signed_with(other), trusted=[key.public])


def test_fields_of_a_later_release_are_covered_in_their_order() -> None:
    # Field 100, a text, as a later release would write it.
    later = Manifest.FromString(MANIFEST.SerializeToString(deterministic=True) + b"\xa2\x06\x03new")
    assert signed_content(later) == signed_content(MANIFEST) + b"\xa2\x06\x03new"
    key = new_signing_key()
    signed = key.sign(later)
    check_signature(Manifest.FromString(signed.SerializeToString()), trusted=[key.public])


@pytest.mark.parametrize("field", [field.name for field in Manifest.DESCRIPTOR.fields if field.name != "signature"])
def test_every_field_is_covered(field: str) -> None:
    key = new_signing_key()
    signed = key.sign(MANIFEST)
    check_signature(signed, trusted=[key.public])
    signed.ClearField(field)  # type: ignore[arg-type]
    with pytest.raises(UntrustedArtifact, match="it was changed after"):
        check_signature(signed, trusted=[key.public])


def test_the_sample_has_every_field() -> None:
    said = {field.name for field, _ in MANIFEST.ListFields()}
    assert said == {field.name for field in Manifest.DESCRIPTOR.fields} - {"signature"}


def test_only_the_keys_that_are_trusted_count() -> None:
    old, new, other = new_signing_key(), new_signing_key(), new_signing_key()
    for key in (old, new):
        check_signature(key.sign(MANIFEST), trusted=[old.public, new.public])
    with pytest.raises(UntrustedArtifact, match=f"signed by key '{other.public.key_id}', and trusted are"):
        check_signature(other.sign(MANIFEST), trusted=[old.public, new.public])
    with pytest.raises(UntrustedArtifact, match="not signed: the farm has to `serve --signing-key`"):
        check_signature(MANIFEST, trusted=[old.public])
    pretended = other.sign(MANIFEST)
    pretended.signature.key_id = old.public.key_id
    with pytest.raises(UntrustedArtifact, match="it was changed after"):
        check_signature(pretended, trusted=[old.public])
    pretended.signature.value = b""
    with pytest.raises(UntrustedArtifact, match="it was changed after"):
        check_signature(pretended, trusted=[old.public])


def test_keys_are_written_and_read() -> None:
    key = new_signing_key()
    again = read_signing_key(key.pem())
    assert again.public == key.public == read_public_key(key.public.text)
    assert key.pem().startswith(b"-----BEGIN PRIVATE KEY-----")
    assert key.pem().decode().splitlines()[1] not in repr(vars(key))


@pytest.mark.parametrize("text", ["", "ed25519:", "ed25519:AAAA", "rsa:" + "A" * 43 + "=", "ed25519:" + "!" * 44])
def test_what_is_no_public_key_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no public key"):
        read_public_key(text)
