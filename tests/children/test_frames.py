from __future__ import annotations

import asyncio
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compilefarm.v1.child_pb2 import ChildBlob
from compilefarm.worker.frames import (
    LARGEST_MESSAGE_BYTES,
    LENGTH_BYTES,
    BrokenPipeOfMessages,
    MessageTooLarge,
    pack_frame,
    read_frame,
    read_frame_async,
    write_frame,
)


@given(st.lists(st.binary(max_size=300), max_size=5))
def test_messages_come_out_as_they_went_in(contents: list[bytes]) -> None:
    pipe = io.BytesIO()
    for content in contents:
        write_frame(pipe, ChildBlob(content=content))
    pipe.seek(0)
    read = [read_frame(pipe, ChildBlob) for _ in contents]
    assert [blob and blob.content for blob in read] == contents
    assert read_frame(pipe, ChildBlob) is None


@given(st.data())
def test_a_cut_message_is_noticed(data: st.DataObject) -> None:
    frame = pack_frame(ChildBlob(content=b"twelve bytes"))
    length = data.draw(st.integers(1, len(frame) - 1))
    with pytest.raises(BrokenPipeOfMessages):
        read_frame(io.BytesIO(frame[:length]), ChildBlob)


async def _read(content: bytes, *, largest_bytes: int = 1000) -> ChildBlob | None:
    reader = asyncio.StreamReader()
    reader.feed_data(content)
    reader.feed_eof()
    return await read_frame_async(reader, ChildBlob, largest_bytes=largest_bytes)


async def test_the_end_that_does_not_trust_reads_the_same() -> None:
    read = await _read(pack_frame(ChildBlob(content=b"x")))
    assert read is not None
    assert read.content == b"x"
    assert await _read(b"") is None


async def test_a_message_that_says_less_than_it_takes_is_none() -> None:
    # Of a field that is there twice the last counts, and the first took time and memory as well.
    twice = ChildBlob(content=b"first").SerializeToString() + ChildBlob(content=b"x").SerializeToString()
    with pytest.raises(BrokenPipeOfMessages, match=f"a ChildBlob of {len(twice)} bytes that says less"):
        await _read(len(twice).to_bytes(LENGTH_BYTES, "little") + twice)


@pytest.mark.parametrize("content", [b"\x01", b"\x09\x00\x00\x00short", b"\x05\x00\x00\x00\xff\xff\xff\xff\xff"])
async def test_malformed_frames_are_noticed(content: bytes) -> None:
    with pytest.raises(BrokenPipeOfMessages):
        await _read(content)


async def test_a_huge_message_is_refused_before_it_is_read() -> None:
    with pytest.raises(BrokenPipeOfMessages, match="4294967295 bytes"):
        await _read(b"\xff\xff\xff\xff")


async def test_a_message_has_so_many_bytes_at_most() -> None:
    length = LARGEST_MESSAGE_BYTES + 1
    with pytest.raises(MessageTooLarge, match=f"{length} bytes is more than the {LARGEST_MESSAGE_BYTES} allowed"):
        await _read(length.to_bytes(LENGTH_BYTES, "little"), largest_bytes=1 << 30)
