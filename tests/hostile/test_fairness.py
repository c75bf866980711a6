"""One caller does not take the workers, or the answers, of the others."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from pathlib import Path

import grpc.aio
import pytest

from compilefarm.core.keys import key_of
from compilefarm.core.pool import Artifact, Assignment
from compilefarm.service.config import GatewayConfig
from compilefarm.service.testing import (
    ENVIRONMENT,
    Calls,
    HeldCompiles,
    Refused,
    ScriptedPool,
    calling,
    sample_job,
    serving,
)
from compilefarm.store.opening import open_store
from compilefarm.v1.admin_service_pb2 import ListWorkersRequest
from compilefarm.v1.compile_service_pb2 import CompileRequest, Finished, Outcome, Priority, Prospect
from compilefarm.v1.job_pb2 import CompileFailure, FailureKind, Job, Symbol
from tests.hostile.callers import LOOPBACK, farm

KEY = key_of(sample_job()).text
WRONG = CompileFailure(kind=FailureKind.FAILURE_KIND_VERIFICATION, message="output 0 differs from eager by 3")
TIMEOUT = CompileFailure(kind=FailureKind.FAILURE_KIND_TIMEOUT, message="the compile took longer than 3600 s")


async def keys_of_workers(calls: Calls) -> set[str]:
    """What Status and ListWorkers show."""
    listed = await calls.admin.ListWorkers(ListWorkersRequest())
    return {worker.job_key for shown in (await calls.status(), listed) for worker in shown.workers}


def job_for(size: int) -> Job:
    job = sample_job()
    job.symbols.append(Symbol(lower=2))
    job.hints.append(size)
    return job


async def finish_without_compile(calls: Calls, job: Job, *, held: HeldCompiles) -> Finished:
    """The answer for a job that no worker is to get; nobody would finish its compile."""
    answered, begun = asyncio.create_task(calls.finish(job)), asyncio.create_task(held.next())
    await asyncio.wait([answered, begun], return_when=asyncio.FIRST_COMPLETED)
    assert not begun.done(), "a worker has the job"
    begun.cancel()
    return await answered


async def test_a_graph_whose_compiles_time_out_is_not_tried_a_third_time() -> None:
    held = HeldCompiles()
    async with serving(pool=ScriptedPool(held)) as gateway, calling(gateway.address) as calls:
        for _ in range(2):
            asked = await calls.watch(sample_job())
            (await held.next()).finish(TIMEOUT)
            assert (await asked.finish()).failure == TIMEOUT
        third = await finish_without_compile(calls, sample_job(), held=held)
    assert third.outcome == Outcome.OUTCOME_QUARANTINED
    assert third.failure.kind == FailureKind.FAILURE_KIND_TIMEOUT
    assert "2 compiles of this graph timed out or died" in third.failure.message
    assert len(held.started) == 2


@pytest.mark.parametrize("failure", [TIMEOUT, WRONG], ids=["costly", "lasting"])
async def test_a_failure_for_the_hints_of_one_is_no_answer_for_the_hints_of_another(failure: CompileFailure) -> None:
    held = HeldCompiles()
    async with serving(pool=ScriptedPool(held)) as gateway, calling(gateway.address) as calls:
        leader, same, other = [await calls.watch(job_for(size)) for size in (2**40, 2**40, 8)]
        (await held.next()).finish(failure)
        again = await asyncio.wait_for(held.next(), 10)
        assert list(again.assignment.job.hints) == [8]
        again.finish()
        assert (await leader.finish()).failure == (await same.finish()).failure == failure
        assert (await other.finish()).HasField("manifest")


async def test_a_refusal_of_the_hints_of_one_is_none_of_the_hints_of_another() -> None:
    held = HeldCompiles()
    async with serving(pool=ScriptedPool(held)) as gateway, calling(gateway.address) as calls:
        leader, other = [await calls.watch(job_for(size)) for size in (2**40, 8)]
        (await held.next()).refuse("a tensor of 2**40 elements")
        (await held.next()).finish()
        with pytest.raises(Refused, match="elements"):
            await leader.finish()
        assert (await other.finish()).HasField("manifest")


async def test_a_tenant_does_not_hold_every_worker(tmp_path: Path) -> None:
    held = HeldCompiles()
    pool = ScriptedPool(held, environments=[ENVIRONMENT] * 3)
    async with farm(tmp_path, {"admin": "admin", "greedy": "compile", "modest": "compile"}, pool=pool) as callers:
        greedy = [await callers["greedy"].watch(sample_job(f"torch.f{number}")) for number in range(3)]
        first = [await held.next(), await held.next()]
        await callers["admin"].wait_until_queued(1)
        modest = await callers["modest"].watch(sample_job("torch.cos"))
        (await held.next()).finish()
        assert (await modest.finish()).HasField("manifest")
        for each in first:
            each.finish()
        (await held.next()).finish()
        for watch in greedy:
            assert (await watch.finish()).HasField("manifest")


async def test_a_bound_of_running_jobs_holds_where_nobody_is_asked() -> None:
    held = HeldCompiles()
    config = GatewayConfig(listen="127.0.0.1:0", max_running_jobs_of_tenant=1)
    pool = ScriptedPool(held, environments=[ENVIRONMENT] * 2)
    async with serving(pool=pool, config=config) as gateway, calling(gateway.address) as calls:
        watches = [await calls.watch(sample_job(f"torch.f{number}"), tenant="one") for number in range(2)]
        only = await held.next()
        await calls.wait_until_queued(1)
        prewarm = await calls.watch(sample_job("torch.sin"), tenant="one", priority=Priority.PRIORITY_PREWARM)
        # It can be taken back at any time, and counts for nothing.
        (await held.next()).finish()
        await prewarm.finish()
        only.finish()
        (await held.next()).finish()
        await asyncio.gather(*(watch.finish() for watch in watches))


@pytest.mark.parametrize("asks", [True, False])
async def test_keys_of_other_namespaces_are_not_shown(tmp_path: Path, asks: bool) -> None:
    held = HeldCompiles()
    names = {"prod": "compile", "reader": "read", "ops": "admin"} if asks else {"": "admin"}
    async with farm(tmp_path, names, pool=ScriptedPool(held)) as callers:
        owner, key = next(iter(callers.values())), key_of(sample_job()).text
        watch = await owner.watch(sample_job())
        running = await held.next()
        shown = {name: await keys_of_workers(calls) for name, calls in callers.items()}
        assert shown == ({"prod": {key}, "reader": {key}, "ops": {key}} if asks else {"": {key}})
        running.finish()
        await watch.finish()


async def test_keys_of_namespaces_that_are_trusted_less_are_not_shown(tmp_path: Path) -> None:
    held = HeldCompiles()
    async with farm(tmp_path, {"prod": "read", "dev": "compile"}, pool=ScriptedPool(held)) as callers:
        watch = await callers["dev"].watch(sample_job())
        running = await held.next()
        shown = {name: await keys_of_workers(calls) for name, calls in callers.items()}
        assert shown == {"prod": {""}, "dev": {key_of(sample_job()).text}}
        running.finish()
        await watch.finish()


async def test_keys_of_other_namespaces_do_not_hide_those_of_ones_own(tmp_path: Path) -> None:
    # The beginning of a key belongs to its graph, and anybody may ask for a graph with other options.
    async with farm(tmp_path, {"prod": "compile", "dev": "compile"}) as callers:
        await callers["prod"].finish(sample_job())
        for number in range(25):
            job = sample_job()
            job.options.inductor.add(name="max_fusion_size").value.integer = number
            await callers["dev"].finish(job)
        assert (await callers["prod"].inspect(KEY[:16])).key == KEY
        with pytest.raises(Refused, match="several keys"):
            await callers["dev"].inspect(KEY[:16])


async def test_a_failure_that_is_remembered_is_none_for_the_hints_of_another() -> None:
    held = HeldCompiles()
    async with serving(pool=ScriptedPool(held)) as gateway, calling(gateway.address) as calls:
        first = await calls.watch(job_for(2**40))
        (await held.next()).finish(WRONG)
        assert (await first.finish()).failure == WRONG
        again = await finish_without_compile(calls, job_for(2**40), held=held)
        assert again.outcome == Outcome.OUTCOME_QUARANTINED
        assert (await calls.plan(job_for(8))).prospect == Prospect.PROSPECT_MISS
        other = await calls.watch(job_for(8))
        (await asyncio.wait_for(held.next(), 10)).finish()
        assert (await other.finish()).HasField("manifest")


async def test_who_reads_does_not_decide_what_an_artifact_of_others_is_verified_with(tmp_path: Path) -> None:
    store, config = await open_store(str(tmp_path / "store")), replace(LOOPBACK, verify="after")
    names, pool = {"prod": "compile", "reader": "read", "dev": "compile"}, VerifyingPool()
    async with farm(tmp_path, names, config=config, store=store, pool=pool) as callers:
        assert (await callers["prod"].finish(job_for(8))).HasField("manifest")
        await asyncio.wait_for(pool.next(), 10)
    # It was not verified when the service ended.
    pool = VerifyingPool()
    async with farm(tmp_path, names, config=config, store=store, pool=pool) as callers:
        for name in ("reader", "dev"):
            await callers[name].lookup(job_for(2**40))
        await callers["prod"].lookup(job_for(9))
        assert await asyncio.wait_for(pool.next(), 10) == [9]


class VerifyingPool(ScriptedPool):
    """Workers that verify for ever, and tell for which hints."""

    def __init__(self) -> None:
        super().__init__()
        self._hints: asyncio.Queue[list[int]] = asyncio.Queue()

    async def next(self) -> list[int]:
        """The hints of the next verification."""
        return await self._hints.get()

    async def verify(self, assignment: Assignment, artifact: Artifact, *, worker: str) -> Artifact | CompileFailure:
        self._hints.put_nowait(list(assignment.job.hints))
        await asyncio.Event().wait()
        return await super().verify(assignment, artifact, worker=worker)


async def test_who_waits_for_the_jobs_of_others_again_and_again_is_told_of_them_seldom() -> None:
    """All were told of each step of each job: 1,500 requests for sizes that are refused had others wait a second."""
    held = HeldCompiles()
    async with serving(pool=ScriptedPool(held)) as gateway, calling(gateway.address) as calls:

        async def told(size: int) -> int:
            call = calls.compiles.Compile(CompileRequest(job=job_for(size)))
            events = 0
            with contextlib.suppress(grpc.aio.AioRpcError):
                async for _ in call:
                    events += 1
            assert (await call.code()).name == "INVALID_ARGUMENT"
            return events

        asked = [asyncio.create_task(told(size)) for size in range(2, 32)]
        first = await held.next()
        while sum(job.waiting_requests for job in (await calls.list_jobs()).jobs) < len(asked):
            pass
        first.refuse("not this size")
        for _ in asked[1:]:
            (await held.next()).refuse("not this size")
        counts = await asyncio.gather(*asked)
    # Accepted, and the steps of the first job and of its own.
    assert max(counts) < 10
