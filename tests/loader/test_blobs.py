from __future__ import annotations

import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compilefarm.builder.packing import pack
from compilefarm.core.digests import digest_of
from compilefarm.core.errors import CorruptArtifact
from compilefarm.loader.blobs import unpack
from compilefarm.v1.manifest_pb2 import ENCODING_IDENTITY, ENCODING_ZLIB, Blob


@given(st.binary(max_size=2000))
def test_content_comes_out_as_it_went_in(content: bytes) -> None:
    blob, stored = pack(content)
    assert unpack(blob, stored) == content
    assert pack(content)[1] == stored


def described(stored: bytes, *, content_size_bytes: int, encoding: int = ENCODING_ZLIB) -> Blob:
    return Blob(
        digest=digest_of(stored),
        size_bytes=len(stored),
        encoding=encoding,  # type: ignore[arg-type]
        content_size_bytes=content_size_bytes,
    )


def test_one_changed_bit_is_noticed() -> None:
    blob, stored = pack(b"some content")
    with pytest.raises(CorruptArtifact, match=blob.digest):
        unpack(blob, bytes([stored[0] ^ 1]) + stored[1:])


def test_a_cut_blob_is_noticed() -> None:
    blob, stored = pack(b"some content")
    with pytest.raises(CorruptArtifact):
        unpack(blob, stored[:-1])


@pytest.mark.parametrize("said", [3, 999, 1001])
def test_a_blob_that_unpacks_to_another_size_is_refused(said: int) -> None:
    stored = zlib.compress(b"a" * 1000)
    with pytest.raises(CorruptArtifact, match=str(said)):
        unpack(described(stored, content_size_bytes=said), stored)


@pytest.mark.parametrize("said", [-1, -2, 2**63 - 1])
def test_a_size_that_is_no_bound_is_refused_and_nothing_is_unpacked(said: int) -> None:
    stored = zlib.compress(bytes(10**7))
    blob = described(stored, content_size_bytes=said)
    tracemalloc.start()
    with pytest.raises(CorruptArtifact, match=str(said)):
        unpack(blob, stored)
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most_bytes < 10**6


def test_bytes_that_do_not_unpack_are_refused() -> None:
    with pytest.raises(CorruptArtifact, match="cannot be unpacked"):
        unpack(described(b"no zlib", content_size_bytes=7), b"no zlib")


def test_an_unknown_encoding_is_refused() -> None:
    with pytest.raises(CorruptArtifact, match="encoding"):
        unpack(described(b"bytes", content_size_bytes=5, encoding=0), b"bytes")


def test_plain_bytes_are_taken_as_they_are() -> None:
    assert unpack(described(b"bytes", content_size_bytes=5, encoding=ENCODING_IDENTITY), b"bytes") == b"bytes"
