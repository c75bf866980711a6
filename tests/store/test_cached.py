"""A store that answers from memory: what it may keep, for how long, and what makes it forget."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from compilefarm.core.digests import digest_of
from compilefarm.core.errors import NotStored, StoreUnavailable
from compilefarm.store.artifact_store import ArtifactStore
from compilefarm.store.backend import Backend
from compilefarm.store.cached import FRESH_SECONDS
from compilefarm.store.layout import PROBES, blob_path, manifest_path
from compilefarm.store.local import open_directory
from compilefarm.store.opening import build_store, collect_garbage, open_store
from compilefarm.store.testing import LateAnswers, MovedClock, sample_artifact, sample_key
from compilefarm.store.uses import LEASE_SECONDS, RENEWAL_SECONDS

KEY = sample_key("job")
ARTIFACT = sample_artifact(KEY)
PROGRAM = ARTIFACT.manifest.program.digest
CACHE_BYTES = 10**6


class CountedReads(LateAnswers):
    """Notes what is read. All reads fail while it is `broken`."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.reads: list[str] = []
        self.broken = False

    async def find(self, path: str) -> bytes | None:
        if not path.startswith(PROBES):
            self.reads.append(path)
            if self.broken:
                raise StoreUnavailable("the disk is broken")
        return await super().find(path)


@pytest.fixture
def clock() -> MovedClock:
    return MovedClock()


@pytest.fixture
def backend(tmp_path: Path) -> CountedReads:
    return CountedReads(open_directory(str(tmp_path)))


@pytest.fixture
async def store(backend: CountedReads, clock: MovedClock) -> ArtifactStore:
    store = await build_store(backend, cache_bytes=CACHE_BYTES, now=clock)
    await store.put_artifact(ARTIFACT.manifest, blobs=ARTIFACT.blobs)
    return store


@pytest.fixture
async def other(tmp_path: Path, clock: MovedClock) -> ArtifactStore:
    """Another service on the same storage."""
    return await open_store(str(tmp_path), now=clock)


async def test_what_was_read_is_not_read_again(store: ArtifactStore, backend: CountedReads) -> None:
    for _ in range(3):
        assert await store.find_manifest(KEY) == ARTIFACT.manifest
        assert await store.get_blob(PROGRAM) == b"program"
    assert backend.reads == [manifest_path(KEY, variant=0), blob_path(PROGRAM)]


async def test_what_many_ask_for_is_read_once(store: ArtifactStore, backend: CountedReads) -> None:
    backend.late = late = asyncio.Event()
    asking = [asyncio.create_task(store.get_blob(PROGRAM)) for _ in range(20)]
    await backend.asked.wait()
    # Who asked first has others read for it; that it goes away is nothing to them.
    asking[0].cancel()
    late.set()
    answers = await asyncio.gather(*asking, return_exceptions=True)
    assert isinstance(answers[0], asyncio.CancelledError)
    assert answers[1:] == [b"program"] * 19
    assert backend.reads == [blob_path(PROGRAM)]


async def test_a_failure_is_told_to_all_who_wait_and_not_kept(store: ArtifactStore, backend: CountedReads) -> None:
    backend.broken = True
    asking = [store.find_manifest(KEY) for _ in range(3)]
    answers = await asyncio.gather(*asking, return_exceptions=True)
    assert [type(answer) for answer in answers] == [StoreUnavailable] * 3
    backend.broken = False
    assert await store.find_manifest(KEY) == ARTIFACT.manifest


async def test_a_miss_is_not_kept(store: ArtifactStore) -> None:
    late = sample_artifact(sample_key("late"))
    assert await store.find_manifest(late.manifest.key) is None
    await store.put_artifact(late.manifest, blobs=late.blobs)
    assert await store.find_manifest(late.manifest.key) == late.manifest


async def test_what_was_asked_for_least_recently_makes_room(store: ArtifactStore, backend: CountedReads) -> None:
    contents = [bytes([number]) * (CACHE_BYTES // 4) for number in range(4)]
    digests = [digest_of(content) for content in contents]
    for content, digest in zip(contents, digests, strict=True):
        await store.put_blob(content, digest=digest)
    for number in (0, 1, 2, 0, 3):
        assert await store.get_blob(digests[number]) == contents[number]
    backend.reads.clear()
    for number in (0, 2, 3, 1):
        assert await store.get_blob(digests[number]) == contents[number]
    assert backend.reads == [blob_path(digests[1])]


async def test_what_is_larger_than_the_memory_is_read_every_time(store: ArtifactStore, backend: CountedReads) -> None:
    large = bytes(2 * CACHE_BYTES)
    await store.put_blob(large, digest=digest_of(large))
    assert await store.get_blob(PROGRAM) == b"program"
    backend.reads.clear()
    for _ in range(2):
        assert await store.get_blob(digest_of(large)) == large
    # It makes nothing else go.
    assert await store.get_blob(PROGRAM) == b"program"
    assert backend.reads == 2 * [blob_path(digest_of(large))]


async def test_damage_below_what_is_in_memory_reaches_nobody(
    tmp_path: Path, store: ArtifactStore, clock: MovedClock
) -> None:
    assert await store.get_blob(PROGRAM) == b"program"
    (tmp_path / blob_path(PROGRAM)).write_bytes(b"prXgram")
    assert await store.get_blob(PROGRAM) == b"program"
    assert (await store.usage()).corrupt_blobs == 0
    started_anew = await open_store(str(tmp_path), cache_bytes=CACHE_BYTES, now=clock)
    assert await started_anew.find_manifest(KEY) == ARTIFACT.manifest
    with pytest.raises(NotStored):
        await started_anew.get_blob(PROGRAM)
    # Whoever asks again gets no manifest without its blobs.
    assert await started_anew.find_manifest(KEY) is None
    assert (await started_anew.usage()).corrupt_blobs == 1


async def test_what_is_withdrawn_is_a_miss_at_once(store: ArtifactStore) -> None:
    assert await store.find_manifest(KEY) == ARTIFACT.manifest
    await store.withdraw(ARTIFACT.manifest, reason="output 0 differs")
    assert await store.find_manifest(KEY) is None


async def test_what_was_read_before_a_withdrawal_is_not_kept(store: ArtifactStore, backend: CountedReads) -> None:
    backend.late = late = asyncio.Event()
    looking = asyncio.create_task(store.find_manifest(KEY))
    await backend.asked.wait()
    await store.withdraw(ARTIFACT.manifest, reason="output 0 differs")
    late.set()
    assert await looking == ARTIFACT.manifest
    assert await store.find_manifest(KEY) is None


async def test_what_another_service_withdraws_is_a_miss_a_little_later(
    store: ArtifactStore, other: ArtifactStore, clock: MovedClock
) -> None:
    assert await store.find_manifest(KEY) == ARTIFACT.manifest
    await other.withdraw(ARTIFACT.manifest, reason="output 0 differs")
    clock.move(FRESH_SECONDS)
    assert await store.find_manifest(KEY) is None


async def test_blobs_that_another_service_took_make_a_miss_when_the_first_is_not_found(
    tmp_path: Path, store: ArtifactStore
) -> None:
    assert await store.find_manifest(KEY) == ARTIFACT.manifest
    (tmp_path / blob_path(PROGRAM)).unlink()
    with pytest.raises(NotStored):
        await store.get_blob(PROGRAM)
    assert await store.find_manifest(KEY) is None


def make_old(folder: Path) -> None:
    for place in filter(Path.is_file, folder.rglob("*")):
        os.utime(place, (0, 0))


async def test_no_service_evicts_what_is_given_from_memory(tmp_path: Path, clock: MovedClock) -> None:
    unused = sample_artifact(sample_key("unused"), program=b"unused", libraries=[])
    before = await open_store(str(tmp_path))
    for artifact in (ARTIFACT, unused):
        await before.put_artifact(artifact.manifest, blobs=artifact.blobs)
    make_old(tmp_path)
    store = await open_store(str(tmp_path), cache_bytes=CACHE_BYTES, now=clock)
    assert await store.find_manifest(KEY) == ARTIFACT.manifest
    clock.move(FRESH_SECONDS - 1)
    assert await store.find_manifest(KEY) == ARTIFACT.manifest
    clock.move(LEASE_SECONDS - RENEWAL_SECONDS)
    # Another service, that knows of uses what the storage says.
    collected = await collect_garbage(str(tmp_path), size_limit_bytes=1, dry_run=False, now=clock)
    assert (collected.artifacts, collected.blobs) == (1, 1)
    for digest, content in ARTIFACT.blobs.items():
        assert await store.get_blob(digest) == content


async def test_evicted_artifacts_are_not_given(tmp_path: Path, store: ArtifactStore, clock: MovedClock) -> None:
    assert await store.find_manifest(KEY) == ARTIFACT.manifest
    clock.move(2 * LEASE_SECONDS)
    collected = await collect_garbage(str(tmp_path), size_limit_bytes=1, dry_run=False, now=clock)
    assert collected.artifacts == 1
    assert await store.find_manifest(KEY) is None


async def test_a_lookup_that_began_before_an_artifact_was_stored_hides_it_from_nobody_after(
    backend: CountedReads, clock: MovedClock
) -> None:
    store = await build_store(backend, cache_bytes=CACHE_BYTES, now=clock)
    backend.late = late = asyncio.Event()
    before = asyncio.create_task(store.find_manifest(KEY))
    await backend.asked.wait()
    await store.put_artifact(ARTIFACT.manifest, blobs=ARTIFACT.blobs)
    after = asyncio.create_task(store.find_manifest(KEY))
    await asyncio.wait([after], timeout=5)
    late.set()
    assert await after == ARTIFACT.manifest
    await before


async def test_a_blob_that_is_missing_makes_only_manifests_that_name_it_forgotten(
    store: ArtifactStore, backend: CountedReads
) -> None:
    await store.find_manifest(KEY)
    backend.reads.clear()
    with pytest.raises(NotStored):
        await store.get_blob("ab" * 32)
    await store.find_manifest(KEY)
    assert backend.reads == [blob_path("ab" * 32)]
