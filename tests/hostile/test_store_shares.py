"""A store of limited size that several namespaces share: what one has made does not push out what another has."""

from __future__ import annotations

from pathlib import Path

import pytest

from compilefarm.core.digests import digest_of
from compilefarm.core.errors import StoreFull
from compilefarm.service.testing import Calls, Refused, sample_job
from compilefarm.store.counting import SMALLEST_OBJECT_BYTES
from compilefarm.store.limited import LimitedStore
from compilefarm.store.opening import open_store
from compilefarm.store.testing import MovedClock, sample_artifact, sample_key
from compilefarm.store.uses import LEASE_SECONDS
from compilefarm.v1.job_pb2 import FAILURE_KIND_VERIFICATION, CompileFailure
from compilefarm.v1.manifest_pb2 import Check
from tests.hostile.callers import farm

KB = 1000
ROOM_BYTES = 110 * KB


async def put(store: LimitedStore, name: str, *, namespace: str) -> None:
    artifact = sample_artifact(sample_key(name), program=f"{namespace} {name}".encode().ljust(30 * KB, b"."))
    artifact.manifest.namespace = namespace
    await store.put_artifact(artifact.manifest, blobs=artifact.blobs)
    await store.has_room()


async def kept(store: LimitedStore, *names: str, namespace: str) -> list[str]:
    return [name for name in names if await store.find_manifest(sample_key(name), namespaces=[namespace]) is not None]


@pytest.mark.parametrize("owner", ["prod", ""])
async def test_a_namespace_below_its_share_loses_nothing_to_another(tmp_path: Path, owner: str) -> None:
    clock = MovedClock()
    store = await open_store(str(tmp_path), size_limit_bytes=ROOM_BYTES, now=clock)
    assert isinstance(store, LimitedStore)
    await put(store, "first", namespace=owner)
    several = [f"f{number}" for number in range(6)]
    for name in several:
        clock.move(2 * LEASE_SECONDS)
        await put(store, name, namespace="greedy")
    # It was used least recently of all.
    assert await kept(store, "first", namespace=owner) == ["first"]
    assert await kept(store, *several, namespace="greedy") == several[-2:]
    assert (await store.usage()).size_bytes <= ROOM_BYTES


async def test_failed_verifications_of_one_namespace_take_no_room_from_another(tmp_path: Path) -> None:
    # Each keeps the request that it was made for, of up to 4 MB.
    store = await open_store(str(tmp_path), size_limit_bytes=ROOM_BYTES, now=MovedClock())
    assert isinstance(store, LimitedStore)
    await put(store, "first", namespace="prod")
    kept_check = Check(key=sample_key("first"), namespace="prod", manifest_digest="ab" * 32)
    await store.put_check(kept_check)
    for number in range(20):
        failed = CompileFailure(kind=FAILURE_KIND_VERIFICATION, message=f"{number}".ljust(20 * KB))
        await store.put_check(Check(key=sample_key(f"f{number}"), namespace="greedy", failed=failed))
        await store.has_room()
    assert sum(path.stat().st_size for path in (tmp_path / "checks").rglob("*") if path.is_file()) <= ROOM_BYTES
    assert await kept(store, "first", namespace="prod") == ["first"]
    assert await store.find_checks(sample_key("first"), namespaces=["prod"]) == [kept_check]


async def test_small_tensors_count_for_the_room_that_they_take(tmp_path: Path) -> None:
    store = await open_store(str(tmp_path), size_limit_bytes=ROOM_BYTES, now=MovedClock())
    for number in range(ROOM_BYTES // SMALLEST_OBJECT_BYTES + 1):
        await store.reserve({"greedy": 1}, namespace="greedy")
        content = b"%d" % number
        await store.put_blob(content, digest=digest_of(content))
    with pytest.raises(StoreFull):
        await store.reserve({"greedy": 1}, namespace="greedy")


async def flood(calls: Calls, sent: list[str]) -> None:
    """Sends tensors that no graph names until the farm takes no more, and looks for those that it sent."""
    assert await calls.find_missing(sent) == []
    try:
        for _ in range(ROOM_BYTES // SMALLEST_OBJECT_BYTES):
            sent.append(await calls.write(f"tensor {len(sent)}".encode().ljust(10 * KB, b".")))
    except Refused as refused:
        if refused.reason != StoreFull.reason:
            raise


async def test_a_tenant_that_floods_the_store_takes_nothing_from_another(tmp_path: Path) -> None:
    clock = MovedClock()
    store = await open_store(str(tmp_path / "store"), size_limit_bytes=ROOM_BYTES, now=clock)
    jobs = [sample_job(f"torch.of_prod_{number}") for number in range(3)]
    async with farm(tmp_path, {"prod": "compile", "greedy": "compile"}, store=store) as callers:
        prod, greedy = callers["prod"], callers["greedy"]
        stored = [(await prod.finish(job)).manifest for job in jobs]
        sent: list[str] = []
        collected = [sample_job(f"torch.of_greedy_{number}") for number in range(12)]
        for number in range(12):
            clock.move(LEASE_SECONDS / 2)
            await flood(greedy, sent)
            # So are artifacts that it has made and keeps in use.
            assert (await greedy.finish(collected[number])).HasField("manifest")
            assert all([(await greedy.lookup(job)).key for job in collected[: number + 1]])
        assert await greedy.find_missing(sent) == []
        # Of hours ago, and never used since.
        assert [await prod.lookup(job) for job in jobs] == stored
        # What is new has a place, too, tensors and artifacts.
        tensor = await prod.write(b"of prod".ljust(10 * KB, b"."))
        clock.move(2 / 3 * LEASE_SECONDS)
        await flood(greedy, sent)
        new = sample_job("torch.new", constants=[tensor])
        assert (await prod.finish(new)).HasField("manifest")
        assert (await prod.lookup(new)).key


async def test_callers_who_are_not_asked_who_they_are_fill_a_store_together(tmp_path: Path) -> None:
    clock = MovedClock()
    store = await open_store(str(tmp_path / "store"), size_limit_bytes=ROOM_BYTES, now=clock)
    async with farm(tmp_path, {"": "admin"}, store=store) as callers:
        for hour in range(3):
            sent: list[str] = []
            await flood(callers[""], sent)
            assert len(sent) == ROOM_BYTES // (10 * KB)
            clock.move((2 + hour) * LEASE_SECONDS)
