"""Blobs on the wire: whole or not at all, from any offset, never unchecked."""

from __future__ import annotations

import pytest

from compilefarm.core.chunks import DOWNLOAD_CHUNK_BYTES, UPLOAD_CHUNK_BYTES
from compilefarm.core.digests import digest_of
from compilefarm.service.config import GatewayConfig
from compilefarm.service.testing import Refused, calling, serving
from compilefarm.v1.blob_service_pb2 import ReadRequest, WriteRequest

LARGE = bytes(range(256)) * (10 * 1024) + b"the end"
ABSENT = "ab" * 32


async def test_a_blob_comes_back_as_it_was_sent() -> None:
    async with serving() as gateway, calling(gateway.address) as calls:
        for content in (b"", b"x", b"x" * UPLOAD_CHUNK_BYTES, LARGE):
            digest = await calls.write(content)
            assert await calls.read(digest) == content
            assert await calls.find_missing([ABSENT, digest]) == [ABSENT]


async def test_a_blob_is_read_from_any_offset_in_pieces_of_a_megabyte() -> None:
    async with serving() as gateway, calling(gateway.address) as calls:
        digest = await calls.write(LARGE)
        for offset in (1, DOWNLOAD_CHUNK_BYTES - 1, DOWNLOAD_CHUNK_BYTES, len(LARGE) - 1, len(LARGE)):
            assert await calls.read(digest, offset_bytes=offset) == LARGE[offset:]
        pieces = [piece.chunk async for piece in calls.blobs.Read(ReadRequest(digest=digest))]
    assert [len(piece) for piece in pieces] == [2**20, 2**20, len(LARGE) - 2 * 2**20]


@pytest.mark.parametrize("offset", [-1, len(LARGE) + 1, 2**62])
async def test_an_offset_outside_of_the_blob_is_refused(offset: int) -> None:
    async with serving() as gateway, calling(gateway.address) as calls:
        digest = await calls.write(LARGE)
        with pytest.raises(Refused, match=f"has {len(LARGE)} bytes, so none begin at {offset}") as refused:
            await calls.read(digest, offset_bytes=offset)
    assert (refused.value.status, refused.value.reason) == ("OUT_OF_RANGE", "out_of_range")


async def test_a_blob_that_is_not_there_is_said_not_to_be() -> None:
    async with serving() as gateway, calling(gateway.address) as calls:
        with pytest.raises(Refused, match=ABSENT) as refused:
            await calls.read(ABSENT)
    assert (refused.value.status, refused.value.reason) == ("NOT_FOUND", "not_stored")


async def test_writing_what_is_there_succeeds() -> None:
    async with serving() as gateway, calling(gateway.address) as calls:
        assert await calls.write(LARGE) == await calls.write(LARGE)


@pytest.mark.parametrize(
    ("pieces", "reason", "message"),
    [
        ([], "invalid_request", "nothing was sent"),
        ([WriteRequest(digest="x", chunk=b"ab")], "invalid_request", "'x' is not a digest"),
        ([WriteRequest(digest=digest_of(b"ab"), chunk=b"aB")], "digest_mismatch", digest_of(b"ab")),
        ([WriteRequest(digest=digest_of(b"ab"), chunk=b"a")], "digest_mismatch", digest_of(b"ab")),
        (
            [WriteRequest(digest=digest_of(b"ab"), chunk=b"a"), WriteRequest(chunk=b"b", offset_bytes=2)],
            "invalid_request",
            "begins at byte 2, but 1 bytes came before",
        ),
        (
            [WriteRequest(digest=digest_of(b"ab"), chunk=b"a"), WriteRequest(chunk=b"b")],
            "invalid_request",
            "begins at byte 0, but 1 bytes came before",
        ),
        (
            [WriteRequest(digest=digest_of(b"ab"), chunk=b"ab", offset_bytes=1)],
            "invalid_request",
            "begins at byte 1, but 0 bytes came before",
        ),
        (
            [WriteRequest(digest=ABSENT, chunk=bytes(2**20 + 1))],
            "invalid_request",
            "a piece of 1048577 bytes is too large",
        ),
    ],
    ids=["nothing", "no digest", "wrong", "cut off", "gap", "overlap", "late", "large piece"],
)
async def test_a_write_that_is_wrong_keeps_nothing(pieces: list[WriteRequest], reason: str, message: str) -> None:
    async with serving() as gateway, calling(gateway.address) as calls:
        await calls.miss(ABSENT, digest_of(b"ab"))
        with pytest.raises(Refused, match=message) as refused:
            await calls.write_pieces(pieces)
        assert (await calls.status()).store.blobs == 0
    assert (refused.value.status, refused.value.reason) == ("INVALID_ARGUMENT", reason)


async def test_a_blob_that_is_too_large_is_refused_before_all_of_it_has_come() -> None:
    config = GatewayConfig(listen="127.0.0.1:0", max_blob_bytes=UPLOAD_CHUNK_BYTES)
    async with serving(config=config) as gateway, calling(gateway.address) as calls:
        await calls.write(b"x" * UPLOAD_CHUNK_BYTES)
        await calls.miss(digest_of(LARGE))
        call = calls.blobs.Write()
        await call.write(WriteRequest(digest=digest_of(LARGE), chunk=LARGE[:UPLOAD_CHUNK_BYTES]))
        await call.write(WriteRequest(chunk=b"more", offset_bytes=UPLOAD_CHUNK_BYTES))
        # The client has not said that it is done, yet it is told.
        assert (await call.code()).name == "INVALID_ARGUMENT"
        assert "larger than the 262144 bytes" in await call.details()


async def test_nothing_is_kept_of_a_write_that_is_broken_off() -> None:
    async with serving() as gateway, calling(gateway.address) as calls:
        await calls.miss(digest_of(LARGE))
        call = calls.blobs.Write()
        await call.write(WriteRequest(digest=digest_of(LARGE), chunk=LARGE[:100]))
        call.cancel()
        assert await calls.find_missing([digest_of(LARGE)]) == [digest_of(LARGE)]
        assert (await calls.status()).store.blobs == 0
        digest = await calls.write(LARGE)
        assert await calls.read(digest) == LARGE


async def test_questions_about_too_many_or_no_digests_are_refused() -> None:
    async with serving() as gateway, calling(gateway.address) as calls:
        assert await calls.find_missing([ABSENT] * 1000) == [ABSENT]
        with pytest.raises(Refused, match="1001 digests in one request: at most 1000"):
            await calls.find_missing([ABSENT] * 1001)
        with pytest.raises(Refused, match=r"'\.\./x' is not a digest") as refused:
            await calls.find_missing(["../x"])
    assert refused.value.status == "INVALID_ARGUMENT"
