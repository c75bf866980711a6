"""Environments that are declared and have no worker: jobs wait, and say for what."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from compilefarm.core.pool import DeclaredEnvironment
from compilefarm.service.config import GatewayConfig
from compilefarm.service.declared_environments import LEARN_SECONDS
from compilefarm.service.testing import (
    ENVIRONMENT,
    Calls,
    HeldCompiles,
    ManualClock,
    Refused,
    ScriptedPool,
    ScriptedScalingPool,
    calling,
    sample_job,
    serving,
)
from compilefarm.store.artifact_store import ArtifactStore
from compilefarm.store.layout import ENVIRONMENTS
from compilefarm.store.opening import open_store
from compilefarm.v1.admin_service_pb2 import FarmState
from compilefarm.v1.compile_service_pb2 import Outcome, Prospect
from compilefarm.v1.environment_pb2 import Cuda, Environment
from tests.service.test_metrics import scrape

LATE = DeclaredEnvironment(name="late", device="cpu", python="/venv/bin/python")
GPU = DeclaredEnvironment(name="gpu", device="cuda", image="farm:cuda")
OTHER = Environment(torch="2.11.0+cpu", cpu=ENVIRONMENT.cpu)
ON_GPU = Environment(torch="2.15.0", cuda=Cuda(name="NVIDIA H200", capability="9.0"))
JOB = sample_job()
LOOK = 1.0


@asynccontextmanager
async def farm(
    pool: ScriptedPool, *, store: ArtifactStore | None = None, clock: ManualClock | None = None
) -> AsyncIterator[Calls]:
    async with (
        serving(pool=pool, store=store, clock=clock or ManualClock(), declared=[LATE, GPU]) as gateway,
        calling(gateway.address) as calls,
    ):
        yield calls


def empty_pool(held: HeldCompiles | None = None) -> ScriptedScalingPool:
    """A pool that has no worker yet."""
    return ScriptedScalingPool(*([] if held is None else [held]), environments=[])


async def test_a_job_for_an_environment_without_workers_waits_and_says_for_what() -> None:
    pool, clock = empty_pool(), ManualClock()
    async with farm(pool, clock=clock) as calls:
        watch = await calls.watch(JOB)
        told = (await watch.next()).progress
        (listed,) = (await calls.list_jobs()).jobs
        assert (await calls.status()).state == FarmState.FARM_STATE_SERVING
        assert pool.expected == {"late": 1}
        pool.recover("late-0", environment_name="late")
        clock.advance(LOOK)
        finished = await watch.finish()
        assert pool.expected == {}
    assert told.waits_for == "a worker of the environment late: it is declared, not seen yet"
    assert listed.waits_for == told.waits_for
    assert finished.outcome == Outcome.OUTCOME_COMPILED


async def test_a_job_for_another_device_than_is_declared_is_refused() -> None:
    pool = empty_pool()
    async with serving(pool=pool, declared=[GPU]) as gateway, calling(gateway.address) as calls:
        with pytest.raises(Refused) as refused:
            await calls.finish(JOB)
        assert refused.value.reason == "no_matching_worker"
        watch = await calls.watch(sample_job(environment=ON_GPU))
        assert "environment gpu" in (await watch.next()).progress.waits_for


async def test_what_an_environment_looks_like_is_kept_after_its_first_worker(tmp_path: Path) -> None:
    store, clock, pool = await open_store(str(tmp_path)), ManualClock(), empty_pool()
    async with farm(pool, store=store, clock=clock) as calls:
        answer = await calls.plan(JOB)
        assert (answer.prospect, answer.problem) == (
            Prospect.PROSPECT_MISS,
            "a worker of the environment late: it is declared, not seen yet",
        )
        with pytest.raises(Refused, match="late is declared, not seen yet"):
            await calls.describe_environment("late")
        pool.recover("late-0", environment_name="late")
        await clock.wait_for_timer(LEARN_SECONDS)
        clock.advance(LEARN_SECONDS)
        # What is just being written is no object yet.
        while not [path for path in (tmp_path / ENVIRONMENTS).glob("late/*") if "#" not in path.name]:
            await calls.status()
        pool.remove("late-0")
        await knows_how_it_looks(calls)
    # Another gateway, or the same one later, which never had a worker of it.
    async with farm(empty_pool(), store=store) as calls:
        await knows_how_it_looks(calls)
        watch = await calls.watch(JOB)
        assert (await watch.next()).progress.waits_for.endswith("late: there is none at present")
        with pytest.raises(Refused, match=r"\(late\): torch 2\.15\.0\+cpu is offered"):
            await calls.finish(sample_job(environment=OTHER))


async def knows_how_it_looks(calls: Calls) -> None:
    """Waits until a gateway has learned it, and describes it."""
    while (await calls.plan(JOB)).problem != "a worker of the environment late: there is none at present":
        pass
    assert (await calls.describe_environment("late")).environment == ENVIRONMENT


async def test_jobs_that_workers_can_do_do_not_wait_for_others() -> None:
    held = HeldCompiles()
    pool = ScriptedScalingPool(held)
    async with farm(pool) as calls:
        first, second = await calls.watch(JOB), await calls.watch(sample_job("torch.sin"))
        compile_ = await held.next()
        await calls.wait_until_queued(1)
        assert pool.expected == {"default": 1}
        assert (await second.next()).progress.waits_for == ""
        compile_.finish()
        (await held.next()).finish()
        for watch in (first, second):
            assert (await watch.finish()).outcome == Outcome.OUTCOME_COMPILED


async def test_a_worker_that_is_something_else_than_was_hoped_turns_its_jobs_away() -> None:
    pool, clock = empty_pool(), ManualClock()
    async with farm(pool, clock=clock) as calls:
        watch = await calls.watch(JOB)
        assert (await watch.next()).progress.waits_for
        pool.recover("late-0", environment=OTHER, environment_name="late")
        clock.advance(LOOK)
        with pytest.raises(Refused, match="late-0: torch") as refused:
            await watch.finish()
    assert refused.value.reason == "no_matching_worker"


async def test_queued_and_running_jobs_are_told_by_environment() -> None:
    held = HeldCompiles()
    config = GatewayConfig(listen="127.0.0.1:0", metrics_listen="127.0.0.1:0")
    async with (
        serving(pool=ScriptedPool(held), config=config, declared=[GPU]) as gateway,
        calling(gateway.address) as calls,
    ):
        watches = [await calls.watch(job) for job in (JOB, sample_job("torch.sin"), sample_job(environment=ON_GPU))]
        await held.next()
        await calls.wait_until_queued(2)
        figures = await scrape(gateway.metrics_address)
    assert len(watches) == 3
    assert {key[1:]: value for key, value in figures.items() if key[0] == "compilefarm_environment_jobs"} == {
        ("default", "queued"): 1,
        ("default", "running"): 1,
        ("gpu", "queued"): 1,
        ("gpu", "running"): 0,
    }
