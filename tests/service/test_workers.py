"""Workers that are lost, that do not fit, that fail, and that are all taken."""

from __future__ import annotations

import asyncio

import pytest

from compilefarm.service.config import GatewayConfig
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
from compilefarm.v1.compile_service_pb2 import Outcome
from compilefarm.v1.environment_pb2 import Environment
from compilefarm.v1.job_pb2 import Phase


def other_environment(**facts: str) -> Environment:
    environment = Environment()
    environment.CopyFrom(ENVIRONMENT)
    environment.MergeFrom(Environment(**facts))
    return environment


NO_RECOVERY = GatewayConfig(listen="127.0.0.1:0", recovery_seconds=0.0)
RECOVERY_SECONDS = GatewayConfig().recovery_seconds
# How often workers are looked at while jobs wait.
LOOK_SECONDS = 1.0
OLDER = other_environment(torch="2.11.0+cpu")


@pytest.mark.parametrize("workers", [1, 3])
async def test_a_job_survives_the_loss_of_two_workers(workers: int) -> None:
    held = HeldCompiles()
    pool = ScriptedPool(held, environments=[ENVIRONMENT] * workers)
    async with serving(pool=pool) as gateway, calling(gateway.address) as calls:
        watch = await calls.watch(sample_job())
        (await held.next()).lose()
        (await held.next()).lose()
        (await held.next()).finish()
        assert (await watch.finish()).outcome == Outcome.OUTCOME_COMPILED
    assert len({each.worker for each in held.started}) == workers


async def test_a_job_that_loses_its_worker_waits_for_another_one_rather_than_for_the_same() -> None:
    held = HeldCompiles()
    pool = ScriptedPool(held, environments=[ENVIRONMENT] * 2)
    async with serving(pool=pool) as gateway, calling(gateway.address) as calls:
        one = await calls.watch(sample_job("torch.relu"))
        first = await held.next()
        other = await calls.watch(sample_job("torch.sin"))
        second = await held.next()
        first.lose()
        assert (await one.progress(Phase.PHASE_QUEUED)).worker == ""
        assert len(held.started) == 2
        second.finish()
        third = await held.next()
        third.finish()
        await asyncio.gather(one.finish(), other.finish())
    assert (third.assignment.key, third.worker) == (first.assignment.key, second.worker)


async def test_the_third_loss_ends_the_job() -> None:
    held = HeldCompiles()
    async with serving(pool=ScriptedPool(held)) as gateway, calling(gateway.address) as calls:
        watches = [await calls.watch(sample_job()) for _ in range(3)]
        for _ in range(3):
            (await held.next()).lose()
        for watch in watches:
            with pytest.raises(Refused, match=r"lost on this job 3 times.*worker-0 was killed") as refused:
                await watch.finish()
            assert (refused.value.status, refused.value.reason) == ("UNAVAILABLE", "worker_lost")
        status = await calls.status()
        again = asyncio.create_task(calls.finish(sample_job()))
        (await held.next()).finish()
        assert (await again).outcome == Outcome.OUTCOME_COMPILED
    assert (status.queued_jobs, status.running_jobs) == (0, 0)


async def test_what_a_worker_refuses_is_refused_to_all() -> None:
    held = HeldCompiles()
    async with serving(pool=ScriptedPool(held)) as gateway, calling(gateway.address) as calls:
        watches = [await calls.watch(sample_job()) for _ in range(3)]
        (await held.next()).refuse("torch.hub.load is not allowed")
        for watch in watches:
            with pytest.raises(Refused, match=r"torch\.hub\.load is not allowed") as refused:
                await watch.finish()
            assert (refused.value.status, refused.value.reason) == ("INVALID_ARGUMENT", "invalid_request")
        assert (await calls.status()).counters.refused == 3


async def test_a_defect_of_the_pool_shows_as_an_incident_only(caplog: pytest.LogCaptureFixture) -> None:
    held = HeldCompiles()
    async with serving(pool=ScriptedPool(held)) as gateway, calling(gateway.address) as calls:
        watches = [await calls.watch(sample_job()) for _ in range(2)]
        (await held.next()).crash(ZeroDivisionError("the secret path /home/me"))
        messages = set()
        for watch in watches:
            with pytest.raises(Refused, match=r"internal error, incident [0-9a-f]{12}") as refused:
                await watch.finish()
            assert (refused.value.status, refused.value.reason) == ("INTERNAL", "internal")
            messages.add(refused.value.message)
    assert len(messages) == 1
    assert "secret" not in messages.pop()
    assert "the secret path /home/me" in caplog.text
    assert "Traceback" in caplog.text


async def test_no_worker_fits_names_what_differs_for_each_environment() -> None:
    pool = ScriptedPool(environments=[OLDER, OLDER, other_environment(python_abi="cpython-312-x86_64-linux-gnu")])
    async with serving(pool=pool) as gateway, calling(gateway.address) as calls:
        with pytest.raises(Refused) as refused:
            await calls.finish(sample_job())
        counters = (await calls.status()).counters
    assert (refused.value.status, refused.value.reason) == ("FAILED_PRECONDITION", "no_matching_worker")
    first, *lines, remedy = refused.value.message.splitlines()
    assert "no worker can compile for torch 2.15.0+cpu" in first
    assert lines == [
        "  worker-0, worker-1: torch 2.11.0+cpu is offered, 2.15.0+cpu is wanted",
        "  worker-2: python cpython-312-x86_64-linux-gnu is offered, cpython-311-x86_64-linux-gnu is wanted",
    ]
    assert "add a worker" in remedy
    assert counters.refused == 1


async def test_a_job_goes_to_the_worker_that_fits() -> None:
    pool = ScriptedPool(environments=[OLDER, ENVIRONMENT])
    async with serving(pool=pool) as gateway, calling(gateway.address) as calls:
        events = await calls.compile(sample_job())
    assert "worker-1" in {event.progress.worker for event in events}
    assert "worker-0" not in {event.progress.worker for event in events}


async def test_a_busy_worker_is_waited_for() -> None:
    held = HeldCompiles()
    async with serving(pool=ScriptedPool(held)) as gateway, calling(gateway.address) as calls:
        watches = [await calls.watch(sample_job("torch.f0"))]
        running = await held.next()
        for number in (1, 2):
            watches.append(await calls.watch(sample_job(f"torch.f{number}")))
            await calls.wait_until_queued(number)
        for queued in (2, 1, 0):
            status = await calls.status()
            assert (status.queued_jobs, status.running_jobs) == (queued, 1)
            assert status.workers[0].job_key == running.assignment.key
            running.finish()
            running = await held.next() if queued else running
        keys = [(await watch.finish()).manifest.key for watch in watches]
    assert [each.assignment.key for each in held.started] == keys, "first come, first served"


async def test_a_worker_that_has_failed_is_not_offered() -> None:
    pool = ScriptedPool(environments=[ENVIRONMENT, ENVIRONMENT])
    pool.fail("worker-0", problem="its process cannot start: no space left")
    async with serving(pool=pool, config=NO_RECOVERY) as gateway, calling(gateway.address) as calls:
        await calls.finish(sample_job("torch.relu"))
        pool.fail("worker-1", problem="its process cannot start: no space left")
        with pytest.raises(Refused, match="no worker is ready") as refused:
            await calls.finish(sample_job("torch.sin"))
    assert refused.value.status == "FAILED_PRECONDITION"
    assert "worker-0, worker-1 failed: its process cannot start: no space left" in refused.value.message


async def test_a_job_that_waits_is_told_when_the_last_worker_fails_and_stays_away() -> None:
    held, clock = HeldCompiles(), ManualClock()
    pool = ScriptedPool(held)
    async with serving(pool=pool, clock=clock) as gateway, calling(gateway.address) as calls:
        one = await calls.watch(sample_job("torch.relu"))
        compile_ = await held.next()
        other = await calls.watch(sample_job("torch.sin"))
        await calls.wait_until_queued(1)
        pool.fail("worker-0", problem="gone")
        compile_.finish()
        await one.finish()
        await clock.wait_for_timer(LOOK_SECONDS)
        clock.advance(RECOVERY_SECONDS - LOOK_SECONDS)
        assert (await calls.status()).queued_jobs == 1
        clock.advance(LOOK_SECONDS)
        with pytest.raises(Refused, match="worker-0 failed: gone"):
            await other.finish()
        # They had their time.
        with pytest.raises(Refused, match="worker-0 failed: gone"):
            await calls.finish(sample_job("torch.cos"))


async def test_jobs_wait_when_all_workers_have_failed_for_a_moment() -> None:
    clock = ManualClock()
    pool = ScriptedPool(environments=[ENVIRONMENT, ENVIRONMENT])
    async with serving(pool=pool, clock=clock) as gateway, calling(gateway.address) as calls:
        for name in ("worker-0", "worker-1"):
            pool.fail(name, problem="it was killed")
        watch = await calls.watch(sample_job())
        await calls.wait_until_queued(1)
        with pytest.raises(Refused, match="no worker is ready"):
            await calls.finish(sample_job(environment=OLDER))
        pool.recover("worker-1")
        clock.advance(LOOK_SECONDS)
        assert (await watch.finish()).outcome == Outcome.OUTCOME_COMPILED
        # What fails anew is waited for anew.
        pool.fail("worker-1", problem="it was killed")
        watch = await calls.watch(sample_job("torch.sin"))
        await calls.wait_until_queued(1)
        pool.recover("worker-1")
        clock.advance(LOOK_SECONDS)
        assert (await watch.finish()).outcome == Outcome.OUTCOME_COMPILED


async def test_a_worker_that_never_started_is_not_waited_for() -> None:
    pool = ScriptedPool()
    pool.restart("worker-0")
    pool.fail("worker-0", problem="torch cannot be imported")
    async with serving(pool=pool, clock=ManualClock()) as gateway, calling(gateway.address) as calls:
        with pytest.raises(Refused, match="worker-0 failed: torch cannot be imported"):
            await calls.finish(sample_job())


async def test_a_worker_that_comes_back_gets_the_jobs_that_wait() -> None:
    held, clock = HeldCompiles(), ManualClock()
    pool = ScriptedPool(held)
    pool.restart("worker-0")
    async with serving(pool=pool, clock=clock) as gateway, calling(gateway.address) as calls:
        watch = await calls.watch(sample_job())
        await watch.progress(Phase.PHASE_QUEUED)
        await calls.wait_until_queued(1)
        pool.recover("worker-0")
        clock.advance(1.0)
        (await held.next()).finish()
        assert (await watch.finish()).outcome == Outcome.OUTCOME_COMPILED
