"""Bytes that change where they lie: noticed, taken out, counted, never served, and healed by the next compile."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from compilefarm.core.artifacts import ARTIFACT_FORMAT
from compilefarm.core.digests import digest_of
from compilefarm.core.errors import NotStored, StoreUnavailable
from compilefarm.core.pool import Artifact
from compilefarm.store.artifact_store import ArtifactStore
from compilefarm.store.backend import WrappingBackend
from compilefarm.store.layout import QUARANTINE, blob_path, manifest_path
from compilefarm.store.local import open_directory
from compilefarm.store.opening import build_store, open_store
from compilefarm.store.testing import sample_artifact, sample_key
from compilefarm.v1.manifest_pb2 import Manifest

KEY = sample_key("job")
PROGRAM = bytes(range(256)) * 4
DIGEST = digest_of(PROGRAM)

SAME_SIZE: dict[str, Callable[[bytes], bytes]] = {
    "bit flip": lambda content: content[:100] + bytes([content[100] ^ 1]) + content[101:],
    "swap": lambda content: content[1:] + content[:1],
    "zeros": lambda content: bytes(len(content)),
}
OTHER_SIZE: dict[str, Callable[[bytes], bytes]] = {
    "truncation": lambda content: content[:-1],
    "empty": lambda content: b"",
    "extension": lambda content: content + b"\0",
}


@pytest.fixture
def artifact() -> Artifact:
    return sample_artifact(KEY, program=PROGRAM)


@pytest.fixture
async def store(tmp_path: Path, artifact: Artifact) -> ArtifactStore:
    store = await open_store(str(tmp_path))
    await store.put_artifact(artifact.manifest, blobs=artifact.blobs)
    return store


def damage(tmp_path: Path, change: Callable[[bytes], bytes]) -> bytes:
    place = tmp_path / blob_path(DIGEST)
    damaged = change(place.read_bytes())
    place.write_bytes(damaged)
    return damaged


@pytest.mark.parametrize("kind", [*SAME_SIZE, *OTHER_SIZE])
async def test_a_damaged_blob_is_moved_aside_and_counted(
    tmp_path: Path, store: ArtifactStore, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    damaged = damage(tmp_path, (SAME_SIZE | OTHER_SIZE)[kind])
    answers = await asyncio.gather(*(store.get_blob(DIGEST) for _ in range(5)), return_exceptions=True)
    assert [type(answer) for answer in answers] == [NotStored] * 5
    assert await store.find_missing([DIGEST]) == [DIGEST]
    assert (tmp_path / QUARANTINE / DIGEST).read_bytes() == damaged
    usage = await store.usage()
    assert (usage.corrupt_blobs, usage.blobs) == (1, 1)
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert DIGEST in caplog.text


@pytest.mark.parametrize("kind", [*SAME_SIZE, *OTHER_SIZE])
async def test_a_damaged_artifact_is_a_miss_that_the_same_bytes_heal(
    tmp_path: Path, store: ArtifactStore, artifact: Artifact, kind: str
) -> None:
    damage(tmp_path, (SAME_SIZE | OTHER_SIZE)[kind])
    with pytest.raises(NotStored):
        await store.get_blob(DIGEST)
    assert await store.find_manifest(KEY) is None
    assert await store.put_artifact(artifact.manifest, blobs=artifact.blobs) == artifact.manifest
    assert await store.find_manifest(KEY) == artifact.manifest
    assert await store.get_blob(DIGEST) == PROGRAM
    assert (await store.usage()).artifacts == 1


@pytest.mark.parametrize("kind", OTHER_SIZE)
async def test_a_blob_of_another_size_makes_a_miss_before_anybody_reads_it(
    tmp_path: Path, store: ArtifactStore, artifact: Artifact, kind: str
) -> None:
    damage(tmp_path, OTHER_SIZE[kind])
    assert await store.find_manifest(KEY) is None
    await store.put_artifact(artifact.manifest, blobs=artifact.blobs)
    assert await store.get_blob(DIGEST) == PROGRAM
    assert (await store.usage()).corrupt_blobs == 1


async def test_a_lost_artifact_is_replaced_by_the_next_compile_even_with_other_bytes(
    tmp_path: Path, store: ArtifactStore
) -> None:
    (tmp_path / blob_path(DIGEST)).unlink()
    again = sample_artifact(KEY, program=b"compiled again")
    assert await store.put_artifact(again.manifest, blobs=again.blobs) == again.manifest
    assert await store.find_manifest(KEY) == again.manifest


def rewritten(**fields: object) -> bytes:
    manifest = sample_artifact(KEY, program=PROGRAM).manifest
    manifest.MergeFrom(Manifest(**fields))
    return manifest.SerializeToString()


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        pytest.param(b"\xff\xff\xff", "no manifest", id="garbage"),
        pytest.param(b"", "manifest of ''", id="empty"),
        pytest.param(rewritten()[:60], "manifest", id="truncated"),
        pytest.param(rewritten(key=sample_key("another")), "manifest of", id="of another key"),
        pytest.param(rewritten(program={"digest": "../../../etc/passwd"}), "not a digest", id="malformed digest"),
        pytest.param(rewritten(format=ARTIFACT_FORMAT + 1), "", id="newer format"),
    ],
)
async def test_a_manifest_that_cannot_be_served_is_a_miss(
    tmp_path: Path, store: ArtifactStore, caplog: pytest.LogCaptureFixture, content: bytes, complaint: str
) -> None:
    place = tmp_path / manifest_path(KEY, variant=0)
    place.write_bytes(content)
    assert await store.find_manifest(KEY) is None
    assert complaint in caplog.text
    assert bool(complaint) == bool(caplog.records)
    again = sample_artifact(KEY, program=b"compiled again")
    assert await store.put_artifact(again.manifest, blobs=again.blobs) == again.manifest
    assert await store.find_manifest(KEY) == again.manifest
    assert place.read_bytes() == content


class NothingMoves(WrappingBackend):
    async def move(self, path: str, *, target: str) -> bool:
        raise StoreUnavailable(f"{target} cannot be written")


async def test_a_damaged_blob_that_cannot_be_moved_is_deleted(tmp_path: Path, artifact: Artifact) -> None:
    store = await build_store(NothingMoves(open_directory(str(tmp_path))))
    await store.put_artifact(artifact.manifest, blobs=artifact.blobs)
    damage(tmp_path, SAME_SIZE["bit flip"])
    with pytest.raises(NotStored):
        await store.get_blob(DIGEST)
    assert not (tmp_path / blob_path(DIGEST)).exists()
    usage = await store.usage()
    assert (usage.corrupt_blobs, usage.blobs) == (1, 1)
