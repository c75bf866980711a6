"""A store that is kept below a size: what goes, what stays, and that nobody ever finds half of an artifact."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

import pytest

from compilefarm.core.digests import digest_of
from compilefarm.core.errors import NotStored, StoreUnavailable
from compilefarm.core.pool import Artifact
from compilefarm.store.backend import Backend, WrappingBackend
from compilefarm.store.checks import KEPT_SECONDS
from compilefarm.store.collector import SET_ASIDE_SECONDS
from compilefarm.store.counting import SMALLEST_OBJECT_BYTES
from compilefarm.store.layout import (
    FORMER_SET_ASIDE,
    SET_ASIDE,
    blob_path,
    failure_path,
    lease_path,
    manifest_path,
    remembered_path,
    session_path,
    use_path,
)
from compilefarm.store.limited import RETRY_SECONDS, LimitedStore
from compilefarm.store.local import open_directory
from compilefarm.store.opening import build_store, collect_garbage, open_store
from compilefarm.store.records import write_record
from compilefarm.store.testing import MovedClock, sample_artifact, sample_key
from compilefarm.store.uses import LEASE_SECONDS, RENEWAL_SECONDS
from compilefarm.v1.manifest_pb2 import Manifest

KB = 1000
LIMIT = 110 * KB
YEAR_SECONDS = 365 * 24 * 3600.0


def artifact_of(name: str, *, libraries: tuple[bytes, ...] = (), size_bytes: int = 30 * KB) -> Artifact:
    return sample_artifact(sample_key(name), program=name.encode().ljust(size_bytes, b"."), libraries=libraries)


async def put(store: LimitedStore, artifact: Artifact) -> None:
    assert await store.put_artifact(artifact.manifest, blobs=artifact.blobs) == artifact.manifest
    await store.has_room()


async def put_all(store: LimitedStore, *names: str) -> None:
    for name in names:
        await put(store, artifact_of(name))


async def kept(store: LimitedStore, *names: str) -> set[str]:
    """Those of which everything is there. The others are not found at all."""
    found = {name: await store.find_manifest(sample_key(name)) for name in names}
    for name, manifest in found.items():
        if manifest is not None:
            assert await store.get_blob(manifest.program.digest) == artifact_of(name).blobs[manifest.program.digest]
    return {name for name, manifest in found.items() if manifest is not None}


@pytest.fixture
def clock() -> MovedClock:
    return MovedClock()


@pytest.fixture
async def store(tmp_path: Path, clock: MovedClock) -> LimitedStore:
    store = await open_store(str(tmp_path), size_limit_bytes=LIMIT, now=clock)
    assert isinstance(store, LimitedStore)
    return store


async def test_what_was_used_least_recently_goes_first(store: LimitedStore, clock: MovedClock) -> None:
    await put_all(store, "a", "b", "c")
    clock.move(2 * LEASE_SECONDS)
    assert await store.find_manifest(sample_key("a")) is not None
    clock.move(2 * LEASE_SECONDS)
    await put_all(store, "d")
    assert await kept(store, "a", "b", "c", "d") >= {"a", "d"}
    usage = await store.usage()
    assert usage.size_bytes <= LIMIT
    assert (usage.size_limit_bytes, usage.evicted_artifacts, usage.artifacts) == (LIMIT, 2, 2)


async def test_a_store_below_its_limit_loses_nothing(store: LimitedStore, clock: MovedClock) -> None:
    await put_all(store, "a", "b")
    clock.move(2 * LEASE_SECONDS)
    await put_all(store, "c")
    assert await kept(store, "a", "b", "c") == {"a", "b", "c"}


async def test_what_is_in_use_stays_and_that_is_said(
    store: LimitedStore, clock: MovedClock, caplog: pytest.LogCaptureFixture
) -> None:
    await put_all(store, "a", "b", "c", "d", "e")
    assert await kept(store, "a", "b", "c", "d", "e") == {"a", "b", "c", "d", "e"}
    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert f"more than its limit of {LIMIT}, and all that may go is in use" in warnings[0]
    clock.move(LEASE_SECONDS + RETRY_SECONDS)
    await put_all(store, "f")
    assert (await store.usage()).size_bytes <= LIMIT


async def test_a_clock_that_is_set_back_keeps_nothing_for_ever(store: LimitedStore, clock: MovedClock) -> None:
    # As of a host that begins in another year, until it asks what time it is.
    clock.move(10 * YEAR_SECONDS)
    await put_all(store, "a", "b", "c", "d")
    clock.move(-5 * YEAR_SECONDS)
    await put_all(store, "e")
    assert (await store.usage()).size_bytes <= LIMIT
    assert "e" in await kept(store, "a", "b", "c", "d", "e")


async def test_a_blob_stays_as_long_as_any_manifest_names_it(store: LimitedStore, clock: MovedClock) -> None:
    shared = bytes(20 * KB)
    first, second = (artifact_of(name, libraries=(shared,)) for name in ("first", "second"))
    await put(store, first)
    await put(store, second)
    clock.move(2 * LEASE_SECONDS)
    assert await store.find_manifest(second.manifest.key) is not None
    await put_all(store, "third")
    assert await store.find_manifest(first.manifest.key) is None
    assert await store.find_manifest(second.manifest.key) == second.manifest
    assert await store.get_blob(digest_of(shared)) == shared
    with pytest.raises(NotStored):
        await store.get_blob(first.manifest.program.digest)


async def test_a_blob_that_is_about_to_be_named_stays(store: LimitedStore, clock: MovedClock) -> None:
    constant = bytes(5 * KB)
    await store.put_blob(constant, digest=digest_of(constant))
    clock.move(2 * LEASE_SECONDS)
    assert await store.find_missing([digest_of(constant)]) == []
    await put_all(store, "a", "b", "c", "d")
    assert await store.get_blob(digest_of(constant)) == constant
    clock.move(2 * LEASE_SECONDS)
    await put_all(store, "e")
    assert await store.find_missing([digest_of(constant)]) == [digest_of(constant)]


async def test_what_was_evicted_can_be_compiled_again(store: LimitedStore, clock: MovedClock, tmp_path: Path) -> None:
    await put_all(store, "a", "b", "c")
    clock.move(2 * LEASE_SECONDS)
    await put_all(store, "d")
    gone = {"a", "b", "c"} - await kept(store, "a", "b", "c")
    assert gone
    assert await store.find_by_prefix(sample_key("a")[:16]) == sorted(
        sample_key(name) for name in {"a", "b", "c", "d"} - gone
    )
    for name in gone:
        again = sample_artifact(sample_key(name), program=b"compiled again")
        await put(store, again)
        clock.move(2 * LEASE_SECONDS)
        # The new manifest lies where the old one was, and is not taken for it.
        await collect_garbage(str(tmp_path), size_limit_bytes=None, dry_run=False, now=clock)
        await put_all(store, *(f"{name}{number}" for number in range(3)))
        if await store.find_manifest(again.manifest.key) is not None:
            assert await store.get_blob(again.manifest.program.digest) == b"compiled again"


class Pausing(WrappingBackend):
    """Stops before it deletes one object."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.path = ""
        self.reached = asyncio.Event()
        self.go_on = asyncio.Event()

    async def delete(self, path: str) -> None:
        if path == self.path:
            self.reached.set()
            await self.go_on.wait()
        await super().delete(path)


@pytest.mark.parametrize("evicted", ["manifest", "blob"])
async def test_a_write_that_meets_an_eviction_ends_with_a_whole_artifact(
    tmp_path: Path, clock: MovedClock, evicted: str
) -> None:
    backend = Pausing(open_directory(str(tmp_path)))
    store = await build_store(backend, size_limit_bytes=LIMIT, now=clock)
    assert isinstance(store, LimitedStore)
    old = artifact_of("old")
    await put(store, old)
    clock.move(2 * LEASE_SECONDS)
    paths = {"manifest": manifest_path(old.manifest.key, variant=0), "blob": blob_path(old.manifest.program.digest)}
    backend.path = paths[evicted]
    for name in ("a", "b", "c"):
        await store.put_artifact(artifact_of(name).manifest, blobs=artifact_of(name).blobs)
    await backend.reached.wait()
    # Somebody has the same compiled again, and somebody looks it up, at the very moment when it goes.
    writing = asyncio.create_task(store.put_artifact(old.manifest, blobs=old.blobs))
    looking = asyncio.create_task(store.find_manifest(old.manifest.key))
    backend.go_on.set()
    assert await writing == old.manifest
    assert await looking in (None, old.manifest)
    await store.has_room()
    assert await store.find_manifest(old.manifest.key) == old.manifest
    assert await store.get_blob(old.manifest.program.digest) == old.blobs[old.manifest.program.digest]


async def test_room_that_cannot_be_made_is_told_and_tried_again_later(
    tmp_path: Path, clock: MovedClock, caplog: pytest.LogCaptureFixture
) -> None:
    class Stuck(WrappingBackend):
        is_stuck = False

        async def delete(self, path: str) -> None:
            if self.is_stuck:
                raise StoreUnavailable("the disk is read-only")
            await super().delete(path)

    backend = Stuck(open_directory(str(tmp_path)))
    store = await build_store(backend, size_limit_bytes=LIMIT, now=clock)
    assert isinstance(store, LimitedStore)
    await put_all(store, "a", "b", "c")
    clock.move(2 * LEASE_SECONDS)
    backend.is_stuck = True
    await put_all(store, "d")
    assert "no room could be made in the store: the disk is read-only" in caplog.text
    assert await kept(store, "a", "b", "c", "d") == {"a", "b", "c", "d"}
    backend.is_stuck = False
    clock.move(2 * LEASE_SECONDS)
    await put_all(store, "e")
    assert (await store.usage()).size_bytes <= LIMIT


async def test_a_service_beside_the_collector_keeps_what_it_uses(tmp_path: Path, clock: MovedClock) -> None:
    serving = await open_store(str(tmp_path))
    for name in ("used", "unused"):
        artifact = artifact_of(name)
        await serving.put_artifact(artifact.manifest, blobs=artifact.blobs)
    age(tmp_path, 2 * LEASE_SECONDS)
    # A service that was started since then, so that it knows only what the storage says.
    serving = await open_store(str(tmp_path))
    assert await serving.find_manifest(sample_key("used")) is not None
    collected = await collect_garbage(str(tmp_path), size_limit_bytes=1, dry_run=False)
    assert collected.artifacts == 1
    assert await serving.find_manifest(sample_key("unused")) is None
    assert await serving.find_manifest(sample_key("used")) is not None
    assert await serving.get_blob(artifact_of("used").manifest.program.digest)


def places(root: Path) -> list[Path]:
    return sorted(root.rglob("*"))


def age(root: Path, seconds: float) -> None:
    """Makes everything that lies in a store older."""
    for place in places(root):
        if place.is_file():
            changed = place.stat().st_mtime - seconds
            os.utime(place, (changed, changed))


async def test_a_use_is_told_once_in_a_while(tmp_path: Path, clock: MovedClock) -> None:
    store = await open_store(str(tmp_path), now=clock)
    artifact = artifact_of("a")
    await store.put_artifact(artifact.manifest, blobs=artifact.blobs)
    use = tmp_path / use_path(manifest_path(artifact.manifest.key, variant=0))
    clock.move(RENEWAL_SECONDS / 2)
    await store.find_manifest(artifact.manifest.key)
    assert not use.exists()
    clock.move(RENEWAL_SECONDS)
    await store.find_manifest(artifact.manifest.key)
    assert use.read_bytes() == b""
    use.unlink()
    await store.find_manifest(artifact.manifest.key)
    assert not use.exists()


async def test_a_full_disk_serves_though_the_use_cannot_be_noted(
    tmp_path: Path, clock: MovedClock, caplog: pytest.LogCaptureFixture
) -> None:
    class Full(WrappingBackend):
        async def touch(self, path: str) -> None:
            raise StoreUnavailable("no space left")

    store = await build_store(Full(open_directory(str(tmp_path))), now=clock)
    artifact = artifact_of("a")
    await store.put_artifact(artifact.manifest, blobs=artifact.blobs)
    clock.move(RENEWAL_SECONDS)
    assert await store.find_manifest(artifact.manifest.key) == artifact.manifest
    assert "cannot note that" in caplog.text


async def garbage(tmp_path: Path) -> Artifact:
    """A store that holds one artifact and one of each kind of what nobody needs."""
    store = await open_store(str(tmp_path))
    good, incomplete, damaged = (artifact_of(name) for name in ("good", "incomplete", "damaged"))
    for artifact in (good, incomplete, damaged):
        await store.put_artifact(artifact.manifest, blobs=artifact.blobs)
    await store.put_blob(b"nameless", digest=digest_of(b"nameless"))
    (tmp_path / blob_path(incomplete.manifest.program.digest)).unlink()
    (tmp_path / manifest_path(damaged.manifest.key, variant=0)).write_bytes(b"damaged")
    assert await store.find_manifest(damaged.manifest.key) is None
    return good


async def test_garbage_goes_and_the_rest_stays(tmp_path: Path) -> None:
    good = await garbage(tmp_path)
    fresh = await collect_garbage(str(tmp_path), size_limit_bytes=None, dry_run=False)
    assert (fresh.artifacts, fresh.blobs, fresh.damaged) == (0, 0, 0)
    age(tmp_path, SET_ASIDE_SECONDS)
    trial = await collect_garbage(str(tmp_path), size_limit_bytes=None, dry_run=True)
    assert await collect_garbage(str(tmp_path), size_limit_bytes=None, dry_run=True) == trial
    collected = await collect_garbage(str(tmp_path), size_limit_bytes=None, dry_run=False)
    assert collected == trial
    # One blob never had a name, the other one had it in the damaged manifest.
    assert (collected.artifacts, collected.blobs, collected.damaged) == (1, 2, 1)
    store = await open_store(str(tmp_path))
    assert await store.find_manifest(good.manifest.key) == good.manifest
    usage = await store.usage()
    assert (usage.artifacts, usage.blobs) == (1, 1)
    objects = [*good.blobs.values(), write_record(good.manifest)]
    left = sum(max(len(each), SMALLEST_OBJECT_BYTES) for each in objects)
    assert collected.size_bytes == left
    assert not (tmp_path / SET_ASIDE).exists()
    again = await collect_garbage(str(tmp_path), size_limit_bytes=None, dry_run=False)
    assert (again.artifacts, again.blobs, again.damaged, again.freed_bytes) == (0, 0, 0, 0)


async def test_what_an_earlier_release_set_aside_goes_as_well(tmp_path: Path) -> None:
    good = await garbage(tmp_path)
    (tmp_path / SET_ASIDE).rename(tmp_path / FORMER_SET_ASIDE)
    young = await collect_garbage(str(tmp_path), size_limit_bytes=None, dry_run=False)
    age(tmp_path, SET_ASIDE_SECONDS)
    collected = await collect_garbage(str(tmp_path), size_limit_bytes=None, dry_run=False)
    assert (young.damaged, collected.damaged) == (0, 1)
    # What lies there counts.
    assert collected.freed_bytes + collected.size_bytes == young.size_bytes
    assert not (tmp_path / FORMER_SET_ASIDE).exists()
    store = await open_store(str(tmp_path))
    assert await store.find_manifest(good.manifest.key) == good.manifest


async def test_what_an_older_release_has_left_goes_as_others_do(tmp_path: Path) -> None:
    """It was taken for what a newer one had written, so that nothing could go, and the store stayed full."""
    clock = MovedClock()
    store = await open_store(str(tmp_path), now=clock)
    older = artifact_of("older")
    await store.put_artifact(older.manifest, blobs=older.blobs)
    older.manifest.format -= 1
    place = tmp_path / manifest_path(older.manifest.key, variant=0)
    place.write_bytes(write_record(older.manifest))
    assert await store.find_manifest(older.manifest.key) is None
    collected = await collect_garbage(str(tmp_path), size_limit_bytes=None, dry_run=False, now=clock)
    # A farm of that release may use it.
    assert (collected.artifacts, collected.blobs) == (0, 0)
    clock.move(2 * LEASE_SECONDS)
    collected = await collect_garbage(str(tmp_path), size_limit_bytes=0, dry_run=False, now=clock)
    assert (collected.artifacts, collected.blobs) == (1, len(older.blobs))
    assert not place.exists()


async def test_nothing_goes_from_a_store_that_a_newer_release_writes(tmp_path: Path) -> None:
    await garbage(tmp_path)
    newer = Manifest()
    newer.CopyFrom(artifact_of("newer").manifest)
    newer.format += 1
    place = tmp_path / manifest_path(newer.key, variant=0)
    place.parent.mkdir(parents=True)
    place.write_bytes(write_record(newer))
    age(tmp_path, SET_ASIDE_SECONDS)
    before = places(tmp_path)
    with pytest.raises(StoreUnavailable, match=f"a newer release of Compilefarm has written .*{newer.key[17:]}"):
        await collect_garbage(str(tmp_path), size_limit_bytes=1, dry_run=False)
    assert places(tmp_path) == before


async def test_a_store_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="No such file or directory"):
        await collect_garbage(str(tmp_path / "typo"), size_limit_bytes=None, dry_run=True)
    assert places(tmp_path) == []


async def test_what_gateways_told_each_other_goes_when_it_is_a_week_old(tmp_path: Path, clock: MovedClock) -> None:
    # Somebody uses the folder, so that opening it once more ends nothing.
    store = await open_store(str(tmp_path))
    paths = [
        tmp_path / path
        for path in (
            session_path("gone"),
            lease_path(sample_key("a"), number=3),
            failure_path(lease_path(sample_key("a"), number=2)),
            remembered_path(sample_key("a"), digest="ab" * 32),
        )
    ]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    await collect_garbage(str(tmp_path), size_limit_bytes=None, dry_run=False, now=clock)
    assert all(path.exists() for path in paths)
    clock.move(KEPT_SECONDS + 1)
    await collect_garbage(str(tmp_path), size_limit_bytes=None, dry_run=False, now=clock)
    assert not any(path.exists() for path in paths)
    assert (await store.usage()).artifacts == 0
