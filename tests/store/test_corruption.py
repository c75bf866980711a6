"""Bytes that change where they lie: noticed, taken out, counted, never served, and healed by the next compile."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from compilefarm.core.artifacts import ARTIFACT_FORMAT
from compilefarm.core.digests import DIGEST_LENGTH, digest_of
from compilefarm.core.errors import NotStored, StoreUnavailable
from compilefarm.core.pool import Artifact
from compilefarm.store.artifact_store import ArtifactStore
from compilefarm.store.backend import WrappingBackend
from compilefarm.store.layout import SET_ASIDE, blob_path, manifest_path
from compilefarm.store.local import open_directory
from compilefarm.store.opening import build_store, open_store
from compilefarm.store.records import DamagedRecord, read_record, write_record
from compilefarm.store.testing import LateAnswers, sample_artifact, sample_key
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
    assert (tmp_path / SET_ASIDE / DIGEST).read_bytes() == damaged
    assert "have the digest" in (tmp_path / SET_ASIDE / f"{DIGEST}.reason").read_text()
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
    assert (await store.usage()).corrupt_blobs == 1
    await store.put_artifact(artifact.manifest, blobs=artifact.blobs)
    assert await store.get_blob(DIGEST) == PROGRAM


async def test_a_lost_artifact_is_replaced_by_the_next_compile_even_with_other_bytes(
    tmp_path: Path, store: ArtifactStore
) -> None:
    (tmp_path / blob_path(DIGEST)).unlink()
    again = sample_artifact(KEY, program=b"compiled again")
    assert await store.put_artifact(again.manifest, blobs=again.blobs) == again.manifest
    assert await store.find_manifest(KEY) == again.manifest


def place_of_manifest(tmp_path: Path) -> Path:
    return tmp_path / manifest_path(KEY, variant=0)


async def check_replaceable(store: ArtifactStore) -> None:
    again = sample_artifact(KEY, program=b"compiled again")
    assert await store.put_artifact(again.manifest, blobs=again.blobs) == again.manifest
    assert await store.find_manifest(KEY) == again.manifest


async def test_every_single_changed_bit_of_a_manifest_is_noticed(tmp_path: Path, artifact: Artifact) -> None:
    record = write_record(artifact.manifest)
    for bit in range(8 * len(record)):
        damaged = bytearray(record)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DamagedRecord):
            read_record(bytes(damaged), key=KEY)
    for length in range(len(record)):
        with pytest.raises(DamagedRecord):
            read_record(record[:length], key=KEY)
    assert read_record(record, key=KEY) == artifact.manifest


@pytest.mark.parametrize("kind", [*SAME_SIZE, *OTHER_SIZE])
async def test_a_damaged_manifest_is_a_miss_and_is_set_aside(
    tmp_path: Path, store: ArtifactStore, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    place = place_of_manifest(tmp_path)
    damaged = (SAME_SIZE | OTHER_SIZE)[kind](place.read_bytes())
    place.write_bytes(damaged)
    answers = await asyncio.gather(*(store.find_manifest(KEY) for _ in range(5)))
    assert answers == [None] * 5
    assert (tmp_path / SET_ASIDE / f"{KEY}-0").read_bytes() == damaged
    assert "do not match" in (tmp_path / SET_ASIDE / f"{KEY}-0.reason").read_text()
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    usage = await store.usage()
    assert (usage.artifacts, usage.corrupt_blobs, usage.corrupt_manifests) == (0, 0, 1)
    await check_replaceable(store)


def changed(**fields: object) -> Manifest:
    manifest = sample_artifact(KEY, program=PROGRAM).manifest
    manifest.MergeFrom(Manifest(**fields))
    return manifest


@pytest.mark.parametrize(
    ("manifest", "complaint"),
    [
        pytest.param(changed(key=sample_key("another")), "the manifest of", id="of another key"),
        pytest.param(changed(program={"digest": "../../../etc/passwd"}), "not a digest", id="malformed digest"),
    ],
)
async def test_a_manifest_that_says_what_none_may_say_is_set_aside(
    tmp_path: Path, store: ArtifactStore, manifest: Manifest, complaint: str
) -> None:
    place_of_manifest(tmp_path).write_bytes(write_record(manifest))
    assert await store.find_manifest(KEY) is None
    assert complaint in (tmp_path / SET_ASIDE / f"{KEY}-0.reason").read_text()
    await check_replaceable(store)


def newer_record() -> bytes:
    title, _, rest = write_record(changed()).partition(b"\n")
    covered = b"2 with something new\n" + rest
    return title[:-DIGEST_LENGTH] + digest_of(covered).encode() + b"\n" + covered


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(write_record(changed(format=ARTIFACT_FORMAT + 1)), id="of the artifact"),
        pytest.param(write_record(changed(format=ARTIFACT_FORMAT - 1)), id="of an older artifact"),
        pytest.param(newer_record(), id="of the record"),
    ],
)
async def test_what_another_release_wrote_is_a_miss_and_stays(
    tmp_path: Path, store: ArtifactStore, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    place_of_manifest(tmp_path).write_bytes(content)
    assert await store.find_manifest(KEY) is None
    await check_replaceable(store)
    assert place_of_manifest(tmp_path).read_bytes() == content
    assert caplog.records == []


async def test_a_sound_blob_that_replaced_a_damaged_one_stays(tmp_path: Path, artifact: Artifact) -> None:
    backend = LateAnswers(open_directory(str(tmp_path)))
    store = await build_store(backend)
    await store.put_artifact(artifact.manifest, blobs=artifact.blobs)
    damage(tmp_path, SAME_SIZE["bit flip"])
    backend.late = late = asyncio.Event()
    reading = asyncio.create_task(store.get_blob(DIGEST))
    await backend.asked.wait()
    # Meanwhile another reader notices, and another writer brings the bytes again.
    healing = await build_store(open_directory(str(tmp_path)))
    with pytest.raises(NotStored):
        await healing.get_blob(DIGEST)
    await healing.put_blob(PROGRAM, digest=DIGEST)
    late.set()
    with pytest.raises(NotStored):
        await reading
    assert await store.get_blob(DIGEST) == PROGRAM
    assert (await store.usage()).corrupt_blobs == 0


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
