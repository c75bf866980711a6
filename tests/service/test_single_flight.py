"""One compile per key, however many ask, and whoever of them goes away."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from compilefarm.core.artifacts import ARTIFACT_FORMAT
from compilefarm.core.keys import key_of
from compilefarm.service.testing import HeldCompiles, ScriptedPool, calling, sample_job, serving
from compilefarm.v1.compile_service_pb2 import Outcome
from compilefarm.v1.job_pb2 import CompileFailure, FailureKind


@pytest.mark.parametrize("requests", [20, 200])
async def test_many_requests_of_one_graph_lead_to_one_compile(requests: int) -> None:
    held = HeldCompiles()
    async with serving(pool=ScriptedPool(held)) as gateway, calling(gateway.address) as calls:
        watches = await asyncio.gather(*(calls.watch(sample_job()) for _ in range(requests)))
        (await held.next()).finish()
        last = await asyncio.gather(*(watch.finish() for watch in watches))
        status = await calls.status()
    assert len(held.started) == 1
    assert Counter(finished.outcome for finished in last) == {
        Outcome.OUTCOME_COMPILED: 1,
        Outcome.OUTCOME_JOINED: requests - 1,
    }
    assert len({finished.manifest.SerializeToString(deterministic=True) for finished in last}) == 1
    assert (status.counters.misses, status.counters.joins, status.counters.compiled) == (requests, requests - 1, 1)


async def test_requests_that_come_while_a_compile_ends_never_start_another() -> None:
    # Requests keep coming at every moment of the flight: while it looks, compiles, writes, lands and afterwards.
    pool = ScriptedPool()
    async with serving(pool=pool) as gateway, calling(gateway.address) as calls:
        for number in range(5):
            job = sample_job(f"torch.f{number}")
            asked: list[asyncio.Task[object]] = []
            leader = asyncio.create_task(calls.finish(job))
            while not leader.done():
                asked.append(asyncio.create_task(calls.finish(job)))
                await asyncio.wait([leader], timeout=0.001)
            await asyncio.gather(leader, *asked)
            assert len(pool.assignments) == number + 1


async def test_graphs_that_differ_are_compiled_apart() -> None:
    pool = ScriptedPool()
    async with serving(pool=pool) as gateway, calling(gateway.address) as calls:
        one, other = await asyncio.gather(calls.finish(sample_job("torch.relu")), calls.finish(sample_job("torch.sin")))
    assert one.manifest.key != other.manifest.key
    assert one.manifest.program.digest != other.manifest.program.digest
    assert len(pool.assignments) == 2


async def test_the_compile_goes_on_when_the_one_who_asked_goes_away() -> None:
    held = HeldCompiles()
    async with serving(pool=ScriptedPool(held)) as gateway, calling(gateway.address) as calls:
        async with calling(gateway.address) as leader:
            await leader.watch(sample_job())
            compile_ = await held.next()
            joined = await calls.watch(sample_job())
        compile_.finish()
        finished = await joined.finish()
        again = await calls.finish(sample_job())
    assert finished.outcome == Outcome.OUTCOME_JOINED
    assert again.outcome == Outcome.OUTCOME_HIT
    assert again.manifest == finished.manifest
    assert len(held.started) == 1


async def test_the_compile_goes_on_when_nobody_is_left() -> None:
    held = HeldCompiles()
    async with serving(pool=ScriptedPool(held)) as gateway, calling(gateway.address) as calls:
        leader = await calls.watch(sample_job())
        compile_ = await held.next()
        joined = await calls.watch(sample_job())
        leader.cancel()
        joined.cancel()
        compile_.finish()
        again = await calls.finish(sample_job())
    assert again.HasField("manifest")
    assert len(held.started) == 1


async def test_what_is_stored_is_found_by_lookup_and_compile_alike() -> None:
    pool = ScriptedPool()
    async with serving(pool=pool) as gateway, calling(gateway.address) as calls:
        made = (await calls.finish(sample_job())).manifest
        found = await calls.lookup(sample_job())
        events = await calls.compile(sample_job())
        status = await calls.status()
    assert found == made
    assert [event.WhichOneof("event") for event in events] == ["accepted", "finished"]
    assert (status.counters.hits, status.counters.misses) == (2, 1)
    assert len(pool.assignments) == 1


async def test_the_manifest_says_what_it_answers_and_who_made_it() -> None:
    async with serving() as gateway, calling(gateway.address) as calls:
        events = await calls.compile(sample_job())
        accepted, manifest = events[0].accepted, events[-1].finished.manifest
        status = await calls.status()
        program = await calls.read(manifest.program.digest)
    key = key_of(sample_job())
    assert manifest.key == accepted.key == key.text
    assert [(part.name, part.digest) for part in manifest.key_parts] == [(part.name, part.digest) for part in key.parts]
    assert list(accepted.key_parts) == list(manifest.key_parts)
    assert manifest.format == ARTIFACT_FORMAT
    assert manifest.farm_version == status.farm_version != ""
    assert manifest.created.seconds >= status.started.seconds
    assert program == f"program of {key.text}".encode()


async def test_a_failed_compile_is_a_result_for_all_and_is_not_kept() -> None:
    held = HeldCompiles()
    async with serving(pool=ScriptedPool(held)) as gateway, calling(gateway.address) as calls:
        watches = [await calls.watch(sample_job()), await calls.watch(sample_job())]
        compile_ = await held.next()
        failure = CompileFailure(kind=FailureKind.FAILURE_KIND_COMPILE_ERROR, message="no lowering", error_type="E")
        compile_.finish(failure)
        ends = [(await watch.finish()).failure for watch in watches]
        again = asyncio.create_task(calls.finish(sample_job()))
        (await held.next()).finish()
        assert (await again).outcome == Outcome.OUTCOME_COMPILED
        counters = (await calls.status()).counters
    assert ends == [failure, failure]
    assert (counters.failed, counters.compiled) == (1, 1)
