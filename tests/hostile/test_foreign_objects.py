"""What lies in a store's folder and is none of ours: whoever asks for it is answered, and nobody else waits."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from compilefarm.core.digests import digest_of
from compilefarm.core.errors import NotStored, StoreUnavailable
from compilefarm.store.artifact_store import ArtifactStore
from compilefarm.store.backend import LARGEST_IN_MEMORY_BYTES, LARGEST_OBJECT_BYTES
from compilefarm.store.entries import EntryStore
from compilefarm.store.entry_records import entry_path, trailer_of
from compilefarm.store.layout import SET_ASIDE, blob_path, manifest_path
from compilefarm.store.local import open_directory
from compilefarm.store.opening import CACHES, open_caches, open_store
from compilefarm.store.testing import sample_artifact, sample_key
from compilefarm.v1.cache_service_pb2 import CacheEntry, TorchCache

KEY = sample_key("job")
DIGEST = digest_of(b"program")
# More than any machine has memory for.
VAST_BYTES = 2**43


def pipe(place: Path) -> None:
    os.mkfifo(place)


def listening(place: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        # Its address may be too long.
        before = os.open(".", os.O_RDONLY)
        os.chdir(place.parent)
        try:
            made.bind(place.name)
        finally:
            os.fchdir(before)
            os.close(before)


def device(place: Path) -> None:
    place.symlink_to("/dev/zero")


def folder(place: Path) -> None:
    place.mkdir()


KINDS: dict[str, Callable[[Path], None]] = {"pipe": pipe, "socket": listening, "device": device, "folder": folder}


async def soon(answer: Awaitable[object]) -> object:
    """What comes of a question, which must not wait for anybody."""
    return await asyncio.wait_for(answer, 30)


def planted(root: Path, path: str, kind: str) -> Path:
    place = root / path
    place.parent.mkdir(parents=True, exist_ok=True)
    KINDS[kind](place)
    return place


@pytest.mark.parametrize("reads_only", [False, True], ids=["written", "read-only"])
@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_no_file_is_no_object(tmp_path: Path, kind: str, reads_only: bool) -> None:
    planted(tmp_path, manifest_path(KEY, variant=0), kind)
    planted(tmp_path, blob_path(DIGEST), kind)
    store = await open_store(str(tmp_path), read_only=reads_only)
    assert await soon(store.find_manifest(KEY)) is None
    assert await soon(store.find_size(DIGEST)) is None
    with pytest.raises(NotStored):
        await soon(store.get_blob(DIGEST))
    with pytest.raises(NotStored):
        await soon(store.reading(DIGEST).__aenter__())


@pytest.mark.parametrize("kind", KINDS)
async def test_what_has_the_name_of_an_object_and_is_none_is_told(tmp_path: Path, kind: str) -> None:
    store = await open_store(str(tmp_path))
    place = planted(tmp_path, blob_path(DIGEST), kind)
    # It was acknowledged before, and compiled again and again.
    with pytest.raises(StoreUnavailable, match=f"could not write {blob_path(DIGEST)}: .* has to be removed"):
        await soon(store.put_blob(b"program", digest=DIGEST))
    place.rmdir() if kind == "folder" else place.unlink()
    await store.put_blob(b"program", digest=DIGEST)
    assert await store.get_blob(DIGEST) == b"program"


async def vast(place: Path, end: bytes = b"") -> None:
    """Leaves a file that says to be vast, and holds next to nothing."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.open("wb") as file:
        file.seek(VAST_BYTES)
        file.write(end or b"\0")


async def test_a_vast_file_is_a_damaged_object(tmp_path: Path) -> None:
    store = await open_store(str(tmp_path))
    await vast(tmp_path / manifest_path(KEY, variant=0))
    assert await store.find_manifest(KEY) is None
    assert (tmp_path / SET_ASIDE / f"{KEY}-0").exists()
    artifact = sample_artifact(KEY)
    await store.put_artifact(artifact.manifest, blobs=artifact.blobs)
    assert await store.find_manifest(KEY) == artifact.manifest


@pytest.mark.parametrize("how", ["get", "read"])
async def test_no_more_of_a_vast_blob_is_read_than_a_blob_can_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr("compilefarm.store.blobs.LARGEST_OBJECT_BYTES", 2**20)
    store: ArtifactStore = await open_store(str(tmp_path))
    await vast(tmp_path / blob_path(DIGEST))
    with pytest.raises(NotStored, match="was corrupt"):
        await soon(store.get_blob(DIGEST) if how == "get" else store.reading(DIGEST).__aenter__())
    assert not (tmp_path / blob_path(DIGEST)).exists()


@pytest.mark.parametrize("size_bytes", [VAST_BYTES, 3])
async def test_a_vast_entry_is_a_damaged_one(tmp_path: Path, size_bytes: int) -> None:
    caches: EntryStore = await open_caches(str(tmp_path), size_limit_bytes=2**50, lifetime_seconds=3600.0)
    cache = TorchCache.TORCH_CACHE_FX_GRAPH
    entry = CacheEntry(cache=cache, key="key", digest=DIGEST, size_bytes=size_bytes)
    path = entry_path("fx_graph", "key", namespace="")
    root = tmp_path / CACHES
    await vast(root / path, trailer_of(entry))
    assert await soon(caches.find(cache, "key", namespaces=[""])) is None
    assert not (root / path).exists()


async def test_what_is_read_into_memory_is_bounded(tmp_path: Path) -> None:
    await vast(tmp_path / "cas/large")
    for each in (open_directory(str(tmp_path)), open_directory(str(tmp_path), read_only=True)):
        content = await each.find("cas/large")
        assert content is not None
        assert len(content) == LARGEST_IN_MEMORY_BYTES < LARGEST_OBJECT_BYTES
        assert await each.find_end("cas/large", size_bytes=10) == bytes(10)


async def test_what_has_nothing_to_read_yet_is_a_damaged_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await open_store(str(tmp_path))
    place = planted(tmp_path, manifest_path(KEY, variant=0), "pipe")
    # The kernel takes some files of /proc for files, too.
    monkeypatch.setattr("compilefarm.core.regular_files.stat.S_ISREG", lambda _: True)
    with place.open("r+b", buffering=0):
        assert await soon(store.find_manifest(KEY)) is None
    assert not place.exists()
