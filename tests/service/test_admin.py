"""What an operator sees."""

from __future__ import annotations

import pytest

from compilefarm.core.keys import key_of
from compilefarm.service.testing import (
    ENVIRONMENT,
    HeldCompiles,
    ManualClock,
    Refused,
    ScriptedPool,
    calling,
    sample_job,
    serving,
)
from compilefarm.v1.admin_service_pb2 import DrainRequest, FarmState, ListWorkersRequest, WorkerState
from compilefarm.v1.compile_service_pb2 import Outcome, Priority
from compilefarm.v1.job_pb2 import Phase


async def test_the_status_tells_workers_counts_and_store() -> None:
    pool = ScriptedPool(environments=[ENVIRONMENT, ENVIRONMENT])
    pool.fail("worker-1", problem="no space left")
    async with serving(pool=pool) as gateway, calling(gateway.address) as calls:
        await calls.finish(sample_job())
        await calls.finish(sample_job())
        with pytest.raises(Refused):
            await calls.lookup(sample_job("torch.sin"))
        status = await calls.status()
    assert [(worker.name, worker.state) for worker in status.workers] == [
        ("worker-0", WorkerState.WORKER_STATE_IDLE),
        ("worker-1", WorkerState.WORKER_STATE_FAILED),
    ]
    assert status.workers[0].environment == ENVIRONMENT
    assert (status.counters.hits, status.counters.misses, status.counters.compiled) == (1, 2, 1)
    assert (status.queued_jobs, status.running_jobs) == (0, 0)
    assert (status.store.location, status.store.artifacts, status.store.blobs) == ("memory:", 1, 2)
    assert status.farm_version
    assert status.state == FarmState.FARM_STATE_SERVING
    assert status.started.seconds > 0


async def test_an_artifact_is_inspected_by_its_key_or_the_beginning_of_it() -> None:
    async with serving() as gateway, calling(gateway.address) as calls:
        made = (await calls.finish(sample_job())).manifest
        for text in (made.key, made.key[:6], made.key[:16], made.key[:17], made.key[:30]):
            assert await calls.inspect(text) == made


async def test_a_beginning_that_fits_several_keys_lists_them() -> None:
    other = sample_job()
    other.ambient.grad_enabled = True
    async with serving() as gateway, calling(gateway.address) as calls:
        keys = [(await calls.finish(job)).manifest.key for job in (sample_job(), other)]
        with pytest.raises(Refused, match="several keys begin with") as refused:
            await calls.inspect(keys[0][:16])
    assert (refused.value.status, refused.value.reason) == ("INVALID_ARGUMENT", "invalid_request")
    assert [line.strip() for line in refused.value.message.splitlines()[1:]] == sorted(keys)


async def test_what_is_not_stored_or_no_key_is_said_to_be_so() -> None:
    async with serving() as gateway, calling(gateway.address) as calls:
        for text in ("0" * 16 + "-" + "0" * 64, "012345"):
            with pytest.raises(Refused, match=f"nothing is stored under {text}") as refused:
                await calls.inspect(text)
            assert (refused.value.status, refused.value.reason) == ("NOT_FOUND", "not_stored")
        for text in ("", "01234", "../../etc"):
            with pytest.raises(Refused) as refused:
                await calls.inspect(text)
            assert (refused.value.status, refused.value.reason) == ("INVALID_ARGUMENT", "invalid_request")


async def test_the_jobs_are_listed_as_they_stand() -> None:
    held, clock = HeldCompiles(), ManualClock()
    async with serving(pool=ScriptedPool(held), clock=clock) as gateway, calling(gateway.address) as calls:
        assert not (await calls.list_jobs()).jobs
        running = await calls.watch(sample_job("torch.relu"), tenant="a team")
        (await held.next()).enter(Phase.PHASE_COMPILING)
        await running.progress(Phase.PHASE_COMPILING)
        clock.advance(4.0)
        # Kept, since gRPC cancels a call that nobody refers to.
        # Held: a call that nobody holds may be cancelled by gRPC.
        waiting = [
            await calls.watch(sample_job("torch.sin"), priority=priority)
            for priority in (Priority.PRIORITY_BACKGROUND, Priority.PRIORITY_PREWARM)
        ]
        await calls.wait_until_queued(1)
        first, second = (await calls.list_jobs()).jobs
        assert waiting
        assert len(waiting) == second.waiting_requests
    assert first.key == key_of(sample_job("torch.relu")).text
    assert (first.phase, first.worker, first.priority) == (
        Phase.PHASE_COMPILING,
        "worker-0",
        Priority.PRIORITY_INTERACTIVE,
    )
    assert (first.tenant, first.waiting_requests, first.elapsed_seconds) == ("a team", 1, 4.0)
    assert (first.jobs_ahead, first.estimated_wait_seconds) == (0, 0.0)
    assert second.key == key_of(sample_job("torch.sin")).text
    assert (second.phase, second.worker, second.priority) == (Phase.PHASE_QUEUED, "", Priority.PRIORITY_BACKGROUND)
    assert (second.tenant, second.waiting_requests, second.elapsed_seconds) == ("", 2, 0.0)
    assert (second.jobs_ahead, second.estimated_wait_seconds) == (0, 56.0)


async def test_a_job_that_is_cancelled_frees_its_worker_and_may_be_asked_for_again() -> None:
    held = HeldCompiles()
    async with serving(pool=ScriptedPool(held)) as gateway, calling(gateway.address) as calls:
        watches = [await calls.watch(sample_job()), await calls.watch(sample_job())]
        cancelled = await held.next()
        key = key_of(sample_job()).text
        assert await calls.cancel(key[:8]) == key
        for watch in watches:
            with pytest.raises(Refused, match="an operator cancelled this job: compile locally") as refused:
                await watch.finish()
            assert (refused.value.status, refused.value.reason) == ("ABORTED", "job_cancelled")
        again = await calls.watch(sample_job())
        (await held.next()).finish()
        assert (await again.finish()).outcome == Outcome.OUTCOME_COMPILED
    assert cancelled.ended.cancelled()


async def test_only_a_job_that_is_there_is_cancelled() -> None:
    held = HeldCompiles()
    other = sample_job()
    other.ambient.grad_enabled = True
    async with serving(pool=ScriptedPool(held)) as gateway, calling(gateway.address) as calls:
        with pytest.raises(Refused, match="no job whose key begins with 012345 waits or is being compiled") as refused:
            await calls.cancel("012345")
        assert (refused.value.status, refused.value.reason) == ("NOT_FOUND", "no_such_job")
        for job in (sample_job(), other):
            await calls.watch(job)
        await calls.wait_until_queued(1)
        keys = sorted(key_of(job).text for job in (sample_job(), other))
        with pytest.raises(Refused, match="several keys begin with") as refused:
            await calls.cancel(keys[0][:16])
        assert [line.strip() for line in refused.value.message.splitlines()[1:]] == keys
        with pytest.raises(Refused, match="'' is too short") as refused:
            await calls.cancel("")
        assert refused.value.status == "INVALID_ARGUMENT"
        assert len((await calls.list_jobs()).jobs) == 2


async def test_workers_are_listed_with_what_is_wrong() -> None:
    pool = ScriptedPool(environments=[ENVIRONMENT, ENVIRONMENT])
    pool.fail("worker-1", problem="no space left")
    async with serving(pool=pool) as gateway, calling(gateway.address) as calls:
        workers = (await calls.admin.ListWorkers(ListWorkersRequest())).workers
    assert [(worker.name, worker.state, worker.problem) for worker in workers] == [
        ("worker-0", WorkerState.WORKER_STATE_IDLE, ""),
        ("worker-1", WorkerState.WORKER_STATE_FAILED, "no space left"),
    ]


async def test_a_drained_farm_finishes_its_jobs_and_tells_when_it_has() -> None:
    held = HeldCompiles()
    async with serving(pool=ScriptedPool(held)) as gateway, calling(gateway.address) as calls:
        watches = [await calls.watch(sample_job("torch.relu"))]
        compile_ = await held.next()
        watches.append(await calls.watch(sample_job("torch.sin")))
        await calls.wait_until_queued(1)
        left = aiter(calls.admin.Drain(DrainRequest()))
        first = await anext(left)
        assert (first.queued_jobs, first.running_jobs) == (1, 1)
        assert (await calls.status()).state == FarmState.FARM_STATE_DRAINING
        with pytest.raises(Refused, match="takes no more requests"):
            await calls.finish(sample_job("torch.cos"))
        compile_.finish()
        second = await anext(left)
        assert second.queued_jobs + second.running_jobs == 1
        manifest = (await watches[0].finish()).manifest
        assert await calls.read(manifest.program.digest), "what was made can be fetched"
        (await held.next()).finish()
        assert [(each.queued_jobs, each.running_jobs) async for each in left] == [(0, 0)]
        assert (await watches[1].finish()).HasField("manifest")


async def test_a_drain_goes_on_when_the_one_who_asked_goes_away() -> None:
    held = HeldCompiles()
    async with serving(pool=ScriptedPool(held)) as gateway, calling(gateway.address) as calls:
        watch = await calls.watch(sample_job())
        async with calling(gateway.address) as operator:
            await anext(aiter(operator.admin.Drain(DrainRequest())))
        with pytest.raises(Refused, match="takes no more requests"):
            await calls.finish(sample_job("torch.sin"))
        (await held.next()).finish()
        assert (await watch.finish()).HasField("manifest")
