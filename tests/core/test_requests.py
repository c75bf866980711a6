"""Requests as files: what is written is read again, and nothing else is."""

from __future__ import annotations

import base64
import hashlib
import resource
import struct
import tracemalloc
import zlib
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compilefarm.core import requests
from compilefarm.core.digests import digest_of
from compilefarm.core.errors import (
    DamagedRequestFile,
    IncompleteRequestFile,
    NewerRequestFile,
    NotARequestFile,
    TruncatedRequestFile,
    UnusableRequestFile,
)
from compilefarm.core.requests import Request, pack_request, read_request, unpack_request, write_request
from compilefarm.service.testing.jobs import sample_job
from compilefarm.v1.request_file_pb2 import RequestFileBlob, RequestFileHeader

TENSORS = {digest_of(content): content for content in (b"one", b"another")}
REQUEST = Request(job=sample_job(constants=[*TENSORS, next(iter(TENSORS))]), blobs=TENSORS)
START_BYTES = 52
# Written by the first release that had such files.
OLD_FILE = (
    "iUNGUkVRDQoBAAAAFAEAAAAAAAB9kdHLKjv7x6nrn0msJu+g4kK3J22FAlwifXtA2rOkwXicpZA9T8MwGISTtvTDLJXFQsXUjaJE"
    "/nhjv9nYGBAzI3Ls1wQpJFWVoPLv+GmEsiDWjnc6Pbq7VZIk7ELkMhfr9DYdxVfKJixhVxu+TDnru4Ov8wM1w2ayTNh8O2OT0X9i"
    "K7aITed6rfi9NaXy2gVdgKgqFNoLJSrtiIzxARGtVFppICe8ISthDLgQrI4RtKTwD+cIAJ1H44GQIJA3UFhVWoEUQaIdybb0JsSI"
    "QDFarY0osQS0cYwU/PIPbvfMmMplkYs7vx/4WoxVoDAWS1f5QHF74/effd21mZYyO6J5MZA1b+1wzF7bYXfN5r8en7mPo+LT+O42"
    "M5Vr8/Dz3PnTp11LjyfU2bMXru36mg7fw1xzGQ=="
)


def _file(*messages: bytes, magic: bytes = b"\x89CFREQ\r\n", number: int = 1, packed: bytes | None = None) -> bytes:
    """A file with a right digest, whatever it holds."""
    if packed is None:
        packed = zlib.compress(b"".join(struct.pack("<I", len(message)) + message for message in messages))
    outline = struct.pack("<8sIQ", magic, number, len(packed))
    return outline + hashlib.sha256(outline + packed).digest() + packed


def _messages(request: Request, *, holds_blobs: bool = True) -> list[bytes]:
    blobs = [RequestFileBlob(digest=digest, content=content) for digest, content in sorted(request.blobs.items())]
    messages = (RequestFileHeader(farm_version="0.1.0", holds_blobs=holds_blobs), request.job, *blobs)
    return [message.SerializeToString() for message in messages]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "graph.cfreq"
    write_request(REQUEST, path=path)
    assert read_request(path) == REQUEST
    write_request(Request(job=sample_job()), path=path)
    assert read_request(path) == Request(job=sample_job())


def test_equal_requests_have_equal_files() -> None:
    reordered = Request(job=REQUEST.job, blobs=dict(reversed(TENSORS.items())))
    assert pack_request(reordered) == pack_request(REQUEST)
    more = Request(job=REQUEST.job, blobs={**TENSORS, digest_of(b"of another graph"): b"of another graph"})
    assert pack_request(more) == pack_request(REQUEST)


def test_a_file_is_small() -> None:
    request = Request(job=REQUEST.job, blobs={})
    assert len(pack_request(request)) < request.job.ByteSize() + START_BYTES


def test_files_of_the_first_release_are_read() -> None:
    assert unpack_request(base64.b64decode(OLD_FILE)).job.graph == sample_job(constants=[*TENSORS]).graph


def test_the_layout_is_the_documented_one() -> None:
    assert unpack_request(_file(*_messages(REQUEST))) == REQUEST


def test_a_file_may_leave_the_tensors_out() -> None:
    read = unpack_request(pack_request(Request(job=REQUEST.job)))
    assert read == Request(job=REQUEST.job)
    assert read.missing_digests() == list(TENSORS)
    assert REQUEST.missing_digests() == []


def test_a_request_with_some_of_its_tensors_is_not_written() -> None:
    with pytest.raises(IncompleteRequestFile, match="1 of the tensors"):
        pack_request(Request(job=REQUEST.job, blobs={digest_of(b"one"): b"one"}))


def test_every_truncation_is_noticed(tmp_path: Path) -> None:
    content = pack_request(REQUEST)
    for size in range(len(content)):
        with pytest.raises(TruncatedRequestFile, match="get it again"):
            unpack_request(content[:size])
    path = tmp_path / "cut.cfreq"
    path.write_bytes(content[:-1])
    with pytest.raises(TruncatedRequestFile, match=r"cut\.cfreq: it ends after"):
        read_request(path)


def test_every_changed_byte_is_noticed() -> None:
    content = pack_request(REQUEST)
    for position in range(len(content)):
        changed = bytearray(content)
        changed[position] ^= 1 << position % 8
        with pytest.raises(UnusableRequestFile) as caught:
            unpack_request(bytes(changed))
        if position >= 20:
            assert type(caught.value) is DamagedRequestFile, position


def test_more_bytes_than_were_written_are_noticed() -> None:
    with pytest.raises(DamagedRequestFile):
        unpack_request(pack_request(REQUEST) + b"\n")


@pytest.mark.parametrize("content", [b"PK\x03\x04", b"\x80\x04", b"CFREQ", b"\x89CFREQ\n" + b"x" * 100, b"\n"])
def test_other_files_are_no_requests(content: bytes) -> None:
    with pytest.raises(NotARequestFile, match=r"\.cfreq"):
        unpack_request(content)


def test_newer_formats_say_what_to_do() -> None:
    with pytest.raises(NewerRequestFile, match="upgrade Compilefarm"):
        unpack_request(_file(number=2))


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [b""],
        [b"", b"\xff"],
        [b"\xff", b""],
        [b"", b"", b"\xff"],
        [b"", b"\x0a\x02\x0a\x00" * 3 + b"\x0a"],
        [b"", b"\x0a\x05" + b"\x0a" * 300],
        [*_messages(REQUEST), _messages(REQUEST)[-1]],
        [*_messages(REQUEST), RequestFileBlob(digest="0" * 64).SerializeToString()],
        [*_messages(REQUEST)[:-1], RequestFileBlob(digest=digest_of(b"one"), content=b"x").SerializeToString()],
    ],
    ids=range(10),
)
def test_content_that_no_release_writes(messages: Sequence[bytes]) -> None:
    with pytest.raises(DamagedRequestFile):
        unpack_request(_file(*messages))


@pytest.mark.parametrize("packed", [b"", b"x", zlib.compress(b"\xff\xff\xff\xff"), zlib.compress(b"a")])
def test_packed_content_that_no_release_writes(packed: bytes) -> None:
    with pytest.raises(DamagedRequestFile):
        unpack_request(_file(packed=packed))


def test_bytes_behind_the_packed_content() -> None:
    with pytest.raises(DamagedRequestFile):
        unpack_request(_file(packed=zlib.compress(b"") + b"x"))


@pytest.mark.parametrize("holds_blobs", [True, False])
def test_a_missing_tensor_is_named(holds_blobs: bool) -> None:
    messages = _messages(REQUEST, holds_blobs=holds_blobs)
    (missing,) = {digest for digest in TENSORS if digest.encode() in messages[-1]}
    with pytest.raises(IncompleteRequestFile, match=missing):
        unpack_request(_file(*messages[:-1]))


def test_a_tensor_whose_digest_is_no_digest_is_shown_escaped() -> None:
    job = sample_job(constants=["\x1b[2J" * 1000])
    with pytest.raises(IncompleteRequestFile) as caught:
        unpack_request(_file(*_messages(Request(job=job))))
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 600


def test_what_unpacks_to_more_than_is_taken_takes_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_bytes = 1024 * 1024
    monkeypatch.setattr(requests, "MAX_FILE_BYTES", limit_bytes)
    bomb = _file(packed=zlib.compress(bytes(200 * limit_bytes)))
    assert len(bomb) < limit_bytes
    tracemalloc.start()
    try:
        with pytest.raises(DamagedRequestFile, match="larger than"):
            unpack_request(bomb)
        assert tracemalloc.get_traced_memory()[1] < 4 * limit_bytes
    finally:
        tracemalloc.stop()


def test_files_and_jobs_that_are_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = pack_request(REQUEST)
    monkeypatch.setattr(requests, "MAX_JOB_BYTES", REQUEST.job.ByteSize() - 1)
    with pytest.raises(UnusableRequestFile, match="too large"):
        pack_request(REQUEST)
    with pytest.raises(DamagedRequestFile, match="at most"):
        unpack_request(content)
    monkeypatch.setattr(requests, "MAX_FILE_BYTES", len(content) - 1)
    path = tmp_path / "large.cfreq"
    path.write_bytes(content)
    with pytest.raises(DamagedRequestFile, match="the most that a request file may have"):
        read_request(path)


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(UnusableRequestFile, match="cannot be read: No such file"):
        read_request(tmp_path / "none.cfreq")
    with pytest.raises(UnusableRequestFile, match="cannot be read: Is a directory"):
        read_request(tmp_path)
    with pytest.raises(UnusableRequestFile, match="cannot be written: No such file"):
        write_request(REQUEST, path=tmp_path / "none" / "graph.cfreq")


def test_a_request_that_cannot_be_written_whole_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "graph.cfreq"
    write_request(REQUEST, path=path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(UnusableRequestFile, match="cannot be written: File too large"):
            write_request(Request(job=sample_job()), path=path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert read_request(path) == REQUEST
    assert list(tmp_path.iterdir()) == [path]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(messages=st.lists(st.binary(max_size=60), max_size=4), genuine=st.integers(0, 3))
def test_random_content_is_refused_or_read(messages: list[bytes], genuine: int) -> None:
    try:
        read = unpack_request(_file(*_messages(REQUEST)[:genuine], *messages))
    except UnusableRequestFile:
        return
    assert not (read.blobs and read.missing_digests())


@settings(max_examples=200, deadline=None, derandomize=True)
@given(content=st.binary(max_size=200))
def test_random_bytes_are_refused(content: bytes) -> None:
    for candidate in (content, b"\x89CFREQ\r\n" + content, _file(packed=content)):
        with pytest.raises(UnusableRequestFile):
            unpack_request(candidate)
