"""A store of limited size that several namespaces share: what one has made does not push out what another has."""

from __future__ import annotations

from pathlib import Path

import pytest

from compilefarm.core.digests import digest_of
from compilefarm.core.errors import StoreFull
from compilefarm.store.counting import SMALLEST_OBJECT_BYTES
from compilefarm.store.limited import LimitedStore
from compilefarm.store.opening import open_store
from compilefarm.store.testing import MovedClock, sample_artifact, sample_key
from compilefarm.store.uses import LEASE_SECONDS
from compilefarm.v1.job_pb2 import FAILURE_KIND_VERIFICATION, CompileFailure
from compilefarm.v1.manifest_pb2 import Check

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
        await store.reserve({"greedy": 1})
        content = b"%d" % number
        await store.put_blob(content, digest=digest_of(content))
    with pytest.raises(StoreFull):
        await store.reserve({"greedy": 1})
