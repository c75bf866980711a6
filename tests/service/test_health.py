"""What the farm is ready for, as load balancers and orchestrators see it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from compilefarm.service.app import Gateway
from compilefarm.service.health_service import ADMIN, BLOBS, COMPILES, WHOLE
from compilefarm.service.testing import (
    FREE_PORT,
    Calls,
    ManualClock,
    Refused,
    ScriptedPool,
    calling,
    refusals,
    sample_job,
    serving,
)
from compilefarm.store.artifact_store import ArtifactStore
from compilefarm.store.opening import open_store
from compilefarm.v1.admin_service_pb2 import FarmState
from compilefarm.v1.compile_service_pb2 import Outcome
from compilefarm.v1.job_pb2 import Phase


class SlowPool(ScriptedPool):
    """Its workers start when they are told to.

    Attributes:
        starting: set when the gateway waits for them.
        ready: set it to have them start.
        problem: if set, they fail to.
    """

    def __init__(self) -> None:
        super().__init__()
        self.starting = asyncio.Event()
        self.ready = asyncio.Event()
        self.problem = ""
        self.restart("worker-0")

    async def start(self) -> None:
        self.starting.set()
        # It is ready before all of them are: the pool tries the machine's compiler with it.
        self.recover("worker-0")
        await self.ready.wait()
        if self.problem:
            raise RuntimeError(self.problem)


@asynccontextmanager
async def starting(
    pool: SlowPool, *, store: ArtifactStore | None = None
) -> AsyncIterator[tuple[asyncio.Task[None], Calls]]:
    """A gateway that waits for its workers, and a client of it."""
    gateway = Gateway(FREE_PORT, store=store or await open_store("memory:"), pool=pool)
    start = asyncio.create_task(gateway.start())
    await pool.starting.wait()
    async with calling(gateway.address) as calls:
        yield start, calls
        pool.ready.set()
        await asyncio.wait([start])
        await gateway.close(grace_seconds=0)


async def serving_services(calls: Calls) -> set[str]:
    """The services that are said to serve."""
    stub = HealthStub(calls.channel)
    answers = {name: await stub.Check(HealthCheckRequest(service=name)) for name in (WHOLE, COMPILES, BLOBS, ADMIN)}
    return {name for name, answer in answers.items() if answer.status == HealthCheckResponse.SERVING}


async def test_each_state_of_the_farm_can_be_told_from_the_others() -> None:
    pool = SlowPool()
    told = {}
    async with starting(pool) as (start, calls):
        told[(await calls.status()).state] = await serving_services(calls)
        pool.ready.set()
        await start
        told[(await calls.status()).state] = await serving_services(calls)
        pool.fail("worker-0", problem="no space left")
        told[(await calls.status()).state] = await serving_services(calls)
        pool.recover("worker-0")
        assert await serving_services(calls) == told[FarmState.FARM_STATE_SERVING]
        await calls.drain()
        told[(await calls.status()).state] = await serving_services(calls)
    assert told == {
        FarmState.FARM_STATE_STARTING: {BLOBS, ADMIN},
        FarmState.FARM_STATE_SERVING: {WHOLE, COMPILES, BLOBS, ADMIN},
        FarmState.FARM_STATE_NO_WORKERS: {WHOLE, BLOBS, ADMIN},
        FarmState.FARM_STATE_DRAINING: set(),
    }


async def test_a_change_is_told_to_those_who_watch() -> None:
    clock, pool = ManualClock(), ScriptedPool()
    async with serving(pool=pool, clock=clock) as gateway, calling(gateway.address) as calls:
        watch = aiter(HealthStub(calls.channel).Watch(HealthCheckRequest(service=COMPILES)))
        assert (await anext(watch)).status == HealthCheckResponse.SERVING
        await clock.wait_for_timer(1.0)
        pool.fail("worker-0", problem="gone")
        clock.advance(1.0)
        assert (await anext(watch)).status == HealthCheckResponse.NOT_SERVING


async def test_a_service_that_does_not_exist_is_said_not_to() -> None:
    async with serving() as gateway, calling(gateway.address) as calls:
        stub = HealthStub(calls.channel)
        with pytest.raises(Refused, match="no such service: other") as refused, refusals():
            await stub.Check(HealthCheckRequest(service="other"))
        assert refused.value.status == "NOT_FOUND"
        watch = aiter(stub.Watch(HealthCheckRequest(service="other")))
        assert (await anext(watch)).status == HealthCheckResponse.SERVICE_UNKNOWN


async def test_what_is_stored_is_served_while_workers_start() -> None:
    store = await open_store("memory:")
    async with serving(store=store) as gateway, calling(gateway.address) as calls:
        made = (await calls.finish(sample_job())).manifest
    async with starting(SlowPool(), store=store) as (_, calls):
        found = await calls.finish(sample_job())
        assert (found.outcome, found.manifest) == (Outcome.OUTCOME_HIT, made)
        assert await calls.read(made.program.digest)


async def test_jobs_wait_until_all_workers_have_started() -> None:
    pool = SlowPool()
    async with starting(pool) as (start, calls):
        watch = await calls.watch(sample_job())
        await watch.progress(Phase.PHASE_QUEUED)
        await calls.wait_until_queued(1)
        assert pool.assignments == []
        pool.ready.set()
        await start
        assert (await watch.finish()).outcome == Outcome.OUTCOME_COMPILED


async def test_jobs_that_wait_for_workers_that_cannot_start_are_told() -> None:
    pool = SlowPool()
    pool.problem = "torch cannot be imported"
    async with starting(pool) as (start, calls):
        watch = await calls.watch(sample_job())
        await calls.wait_until_queued(1)
        pool.ready.set()
        with pytest.raises(Refused) as refused:
            await watch.finish()
        assert refused.value.reason == "draining"
        with pytest.raises(RuntimeError, match="torch cannot be imported"):
            await start
    assert pool.closed
