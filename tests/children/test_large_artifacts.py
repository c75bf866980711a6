"""Large artifacts go through the gateway in pieces, and are not held in its memory."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Sequence
from pathlib import Path

import pytest

from compilefarm.core.contents import Content, FileContent, FilePart
from compilefarm.core.digests import digest_of
from compilefarm.service.testing import calling, sample_job
from compilefarm.store.opening import open_store
from compilefarm.store.testing import sample_artifact, sample_key
from compilefarm.v1.child_pb2 import ChildBlob
from compilefarm.worker import spooling
from compilefarm.worker.pieces import PIECE_BYTES, pieces_of
from compilefarm.worker.spooling import MEMORY_BYTES, SpoolingAssembly
from compilefarm.worker.testing import ENVIRONMENT, program_of
from tests.chaos.farm import running
from tests.memory import most_resident_bytes

MUCH_BYTES = 96 * 1024 * 1024


def test_an_artifact_that_is_compiled_stored_and_read_is_never_in_the_memory_of_the_gateway(tmp_path: Path) -> None:
    job = sample_job(environment=ENVIRONMENT)

    async def compile_and_read(address: str) -> tuple[int, bytes]:
        async with calling(address) as calls:
            await calls.status()
            before = most_resident_bytes(farm.process.pid)
            program = (await calls.finish(job)).manifest.program
            return before, await calls.read(program.digest)

    with running(tmp_path / "farm", options=("--slots=1",), child=(f"--size={MUCH_BYTES}",)) as farm:
        before, content = asyncio.run(compile_and_read(farm.address))
        grown_bytes = most_resident_bytes(farm.process.pid) - before
    assert content == program_of(job, size_bytes=MUCH_BYTES)
    assert grown_bytes < MUCH_BYTES / 2


@pytest.mark.parametrize(
    "size_bytes", [0, 1, MEMORY_BYTES, MEMORY_BYTES + 1, MEMORY_BYTES + PIECE_BYTES, 2 * MEMORY_BYTES]
)
async def test_blobs_are_what_was_sent_whatever_their_size(size_bytes: int) -> None:
    contents = [bytes(size_bytes), b"the next one", bytes(range(256)) * 100, b""]
    assembled = await assemble(contents)
    # All are read when the last is there: those that lie in one file do not mix.
    for content, (digest, spooled) in zip(contents, assembled, strict=True):
        assert digest == digest_of(content)
        assert spooled[:] == content
        assert spooled[1:3] == content[1:3]
        assert len(spooled) == len(content)
        assert list(pieces_of("", spooled)) == list(pieces_of("", content))
    assert isinstance(assembled[0][1], FilePart) == (size_bytes > MEMORY_BYTES)


@pytest.mark.parametrize("count", [2, 5])
async def test_many_blobs_are_held_in_no_more_memory_than_one(count: int) -> None:
    contents = [bytes([number]) * (MEMORY_BYTES // 2) for number in range(count)]
    assembled = await assemble(contents)
    assert [spooled[:] for _, spooled in assembled] == contents
    assert [type(spooled) for _, spooled in assembled] == [bytes, bytes, *[FilePart] * (count - 2)]


async def assemble(contents: Sequence[bytes]) -> list[tuple[str, Content]]:
    """Has blobs put together of their pieces, one after the other."""
    assembly, assembled = SpoolingAssembly(), []
    for content in contents:
        *pieces, last = pieces_of("", content)
        for piece in pieces:
            assert await assembly.add(piece) is None
        blob = await assembly.add(last)
        assert blob is not None
        assembled.append(blob)
    return assembled


async def test_a_disk_without_room_for_a_large_blob_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(FileContent):
        def write(self, piece: bytes) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(spooling, "FileContent", Full)
    assembly = SpoolingAssembly()
    with pytest.raises(OSError, match="No space left"):
        await assembly.add(ChildBlob(content=bytes(MEMORY_BYTES + 1)))


@pytest.mark.parametrize("place", ["folder", "memory"])
async def test_a_store_takes_contents_that_lie_in_files(tmp_path: Path, place: str) -> None:
    store = await open_store(str(tmp_path) if place == "folder" else "memory:")
    program = bytes(range(256)) * (10 * PIECE_BYTES // 256) + b"and a bit"
    artifact, content = sample_artifact(sample_key("job"), program=program), FileContent()
    content.write(program)
    await store.put_artifact(artifact.manifest, blobs={**artifact.blobs, digest_of(program): content})
    assert await store.find_manifest(artifact.manifest.key) == artifact.manifest
    assert await store.get_blob(digest_of(program)) == program
