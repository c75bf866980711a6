"""A store that fails or lies: told clearly, healed by the next compile, never a wrong byte."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from obstore.store import MemoryStore

from compilefarm.core.errors import StoreUnavailable
from compilefarm.core.pool import Artifact, Assignment
from compilefarm.service.best_known import best_known
from compilefarm.service.config import GatewayConfig
from compilefarm.service.testing import (
    HeldCompiles,
    ManualClock,
    Refused,
    ScriptedPool,
    artifact_of,
    calling,
    sample_job,
    serving,
)
from compilefarm.service.testing.pool import OnPhase
from compilefarm.store.artifact_store import EVERYBODYS, ArtifactStore
from compilefarm.store.backend import StoredObject, WrappingBackend
from compilefarm.store.cache import Cache, cache_of_one
from compilefarm.store.layout import blob_path
from compilefarm.store.object_backend import ObjectBackend
from compilefarm.store.opening import build_store, open_store
from compilefarm.v1.compile_service_pb2 import Outcome
from compilefarm.v1.manifest_pb2 import Manifest
from tests.service.test_metrics import scrape

ABSENT = "ab" * 32


class FlakyStore:
    """A store that cannot be read or written while that is said."""

    def __init__(self, store: ArtifactStore) -> None:
        self.readable = self.writable = True
        self._store = store

    async def find_manifest(
        self,
        key: str,
        *,
        namespaces: Sequence[str] = EVERYBODYS,
        hints: Sequence[int] | None = None,
        fresh: bool = False,
    ) -> Manifest | None:
        if not self.readable:
            raise StoreUnavailable("the bucket does not answer")
        return await self._store.find_manifest(key, namespaces=namespaces, hints=hints, fresh=fresh)

    async def put_artifact(self, manifest: Manifest, *, blobs: Mapping[str, bytes]) -> Manifest:
        if not self.writable:
            raise StoreUnavailable("no space left on /data: free some, or give the store another directory")
        return await self._store.put_artifact(manifest, blobs=blobs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


async def test_an_artifact_that_cannot_be_stored_is_given_up_loudly() -> None:
    store = FlakyStore(await open_store("memory:"))
    store.writable = False
    async with serving(store=store) as gateway, calling(gateway.address) as calls:
        with pytest.raises(Refused, match=r"could not be stored and is lost \(no space left on /data") as refused:
            await calls.finish(sample_job())
        counters = (await calls.status()).counters
        store.writable = True
        again = await calls.finish(sample_job())
    assert (refused.value.status, refused.value.reason) == ("UNAVAILABLE", "store_unavailable")
    assert (counters.compiled, counters.failed) == (0, 1)
    assert again.outcome == Outcome.OUTCOME_COMPILED


async def test_a_store_that_cannot_be_read_is_not_taken_for_a_miss() -> None:
    store, pool = FlakyStore(await open_store("memory:")), ScriptedPool()
    store.readable = False
    async with serving(store=store, pool=pool) as gateway, calling(gateway.address) as calls:
        for call in (calls.finish, calls.lookup):
            with pytest.raises(Refused, match="the bucket does not answer") as refused:
                await call(sample_job())
            assert refused.value.status == "UNAVAILABLE"
    assert pool.assignments == []


async def test_a_corrupt_blob_is_not_served_and_the_next_compile_heals_it(tmp_path: Path) -> None:
    pool = ScriptedPool()
    async with serving(store=await open_store(str(tmp_path)), pool=pool) as gateway, calling(gateway.address) as calls:
        program = (await calls.finish(sample_job())).manifest.program
        place = tmp_path / blob_path(program.digest)
        content = place.read_bytes()
        place.write_bytes(bytes([content[0] ^ 1]) + content[1:])
        with pytest.raises(Refused) as refused:
            await calls.read(program.digest)
        assert (refused.value.status, refused.value.reason) == ("NOT_FOUND", "not_stored")
        assert (await calls.finish(sample_job())).outcome == Outcome.OUTCOME_COMPILED
        assert await calls.read(program.digest) == content
    assert len(pool.assignments) == 2


async def test_tensors_of_the_graph_have_to_be_stored_first() -> None:
    pool = ScriptedPool()
    async with serving(pool=pool) as gateway, calling(gateway.address) as calls:
        digest = await calls.write(b"elements")
        job = sample_job(constants=[digest, ABSENT, digest])
        with pytest.raises(Refused, match=f"1 tensors of the graph are not stored: {ABSENT}") as refused:
            await calls.finish(job)
        assert (refused.value.status, refused.value.reason) == ("FAILED_PRECONDITION", "missing_blobs")
        assert pool.assignments == []
        await calls.finish(sample_job(constants=[digest, digest]))
    assert pool.assignments[0].blobs == {digest: b"elements"}


async def test_an_artifact_is_found_though_the_tensors_of_its_graph_are_gone(tmp_path: Path) -> None:
    async with serving(store=await open_store(str(tmp_path))) as gateway, calling(gateway.address) as calls:
        digest = await calls.write(b"elements")
        await calls.finish(sample_job(constants=[digest]))
        (tmp_path / blob_path(digest)).unlink()
        assert (await calls.finish(sample_job(constants=[digest]))).outcome == Outcome.OUTCOME_HIT


async def test_a_worker_does_not_decide_what_its_artifact_is_called() -> None:
    async def boast(assignment: Assignment, worker: str, on_phase: OnPhase) -> Artifact:
        artifact = artifact_of(assignment)
        manifest = Manifest()
        manifest.CopyFrom(artifact.manifest)
        manifest.key = "f" * 16 + "-" + "f" * 64
        manifest.key_parts.add(name="graph", digest=ABSENT)
        manifest.farm_version = "666"
        return Artifact(manifest=manifest, blobs=artifact.blobs)

    async with serving(pool=ScriptedPool(boast)) as gateway, calling(gateway.address) as calls:
        accepted = (await calls.compile(sample_job()))[0].accepted
        manifest = await calls.lookup(sample_job())
    assert manifest.key == accepted.key
    assert list(manifest.key_parts) == list(accepted.key_parts)
    assert manifest.farm_version != "666"


class Unlisted(WrappingBackend):
    """Storage of which folders cannot be listed while that is said."""

    def __init__(self) -> None:
        super().__init__(ObjectBackend(MemoryStore(), location="memory:"))
        self.answers: Callable[[], None] = lambda: None

    async def objects(self, folder: str) -> AsyncIterator[StoredObject]:
        self.answers()
        async for stored in super().objects(folder):
            yield stored


async def test_operators_are_told_what_is_known_without_a_store_that_cannot_be_listed() -> None:
    backend, clock, compiles = Unlisted(), ManualClock(), HeldCompiles()
    config = GatewayConfig(listen="127.0.0.1:0", metrics_listen="127.0.0.1:0")

    def fail() -> None:
        raise StoreUnavailable("the bucket does not answer")

    async with (
        serving(store=await build_store(backend), pool=ScriptedPool(compiles), config=config, clock=clock) as gateway,
        calling(gateway.address) as calls,
        asyncio.TaskGroup() as group,
    ):
        group.create_task(calls.finish(sample_job()))
        held = await compiles.next()
        backend.answers = fail
        status, jobs = await calls.status(), await calls.list_jobs()
        figures = await scrape(gateway.metrics_address)
        backend.answers = lambda: None
        held.ended.set_result(artifact_of(held.assignment))
    assert (status.running_jobs, status.store_failure) == (1, "the bucket does not answer")
    assert ([job.tenant for job in jobs.jobs], jobs.store_failure) == ([""], "the bucket does not answer")
    assert figures["compilefarm_running_jobs",] == 1
    assert ("compilefarm_quarantined_keys",) not in figures


async def test_a_store_that_does_not_answer_keeps_nobody_waiting() -> None:
    never: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    # As it lies between the store and who asks.
    counts: Cache[None, int] = cache_of_one(kept_seconds=60.0, now=time.time)
    known = await best_known(counts.get(None, load=lambda: never), seconds=0.01)
    assert (known.value, known.failure) == (None, "the store does not say within 0.01 s what lies there")
