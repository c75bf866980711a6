"""Jobs that nobody waits for: done although the service is killed."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from compilefarm.core.keys import key_of
from compilefarm.service.config import CannotStart, GatewayConfig
from compilefarm.service.journaling import TAKE_OVER_SECONDS
from compilefarm.service.sessions import EXPIRY_SECONDS, RENEWAL_SECONDS
from compilefarm.service.state_folder import using
from compilefarm.service.testing import (
    Calls,
    HeldCompiles,
    ManualClock,
    Refused,
    ScriptedPool,
    calling,
    sample_job,
    serving,
)
from compilefarm.store.layout import JOURNAL
from compilefarm.store.opening import open_store
from compilefarm.v1.compile_service_pb2 import Priority
from compilefarm.v1.job_pb2 import CompileFailure, FailureKind

JOB, OTHER = sample_job(), sample_job("torch.sin")
PREWARM = Priority.PRIORITY_PREWARM
Serve = Callable[..., AbstractAsyncContextManager[Calls]]


@pytest.fixture
def farm(tmp_path: Path) -> Serve:
    """A farm whose store and journal stay when it ends."""

    @asynccontextmanager
    async def run(
        pool: ScriptedPool, *, config: GatewayConfig | None = None, clock: ManualClock | None = None
    ) -> AsyncIterator[Calls]:
        store = await open_store(str(tmp_path / "store"))
        async with (
            serving(pool=pool, store=store, clock=clock or ManualClock(), config=config) as gateway,
            calling(gateway.address) as calls,
        ):
            yield calls

    return run


def kept(folder: Path) -> list[str]:
    """The entries in the store, of whichever gateway."""
    # Twice: one that is just being taken over may be missed in both places.
    walks = [os.walk(folder / "store" / JOURNAL) for _ in range(2)]
    return sorted({name for walk in walks for _, _, names in walk for name in names})


async def left(calls: Calls, count: int, *, folder: Path) -> list[str]:
    """The entries, when what is done is gone."""
    while len(kept(folder)) > count:
        await calls.status()
    return kept(folder)


async def done(calls: Calls, count: int) -> None:
    while (await calls.status()).counters.compiled < count:
        pass


async def test_a_prewarm_that_was_accepted_is_done_though_the_service_is_killed(farm: Serve, tmp_path: Path) -> None:
    program = str(Path(__file__).with_name("killed_gateway.py"))
    process = await asyncio.create_subprocess_exec(sys.executable, program, str(tmp_path), stdout=PIPE)
    assert process.stdout is not None
    address = (await process.stdout.readline()).decode().strip()
    interactive = sample_job("torch.cos")
    async with calling(address) as calls:
        # One is being compiled, one waits. Whoever waits for the third will ask again.
        watches = [await calls.watch(JOB, priority=PREWARM, tenant="rollout")]
        watches += [await calls.watch(OTHER, priority=PREWARM), await calls.watch(interactive)]
        process.kill()
        await process.wait()
    pool = ScriptedPool()
    async with farm(pool) as calls:
        await done(calls, 2)
        for job in (JOB, OTHER):
            assert (await calls.lookup(job)).key == key_of(job).text
        while kept(tmp_path):
            await calls.status()
        with pytest.raises(Refused):
            await calls.lookup(interactive)
    assert len(watches) == 3
    # Each once; which comes first is left to the queue.
    assert sorted(each.key for each in pool.assignments) == sorted(key_of(job).text for job in (JOB, OTHER))


async def test_what_is_done_is_not_kept(farm: Serve, tmp_path: Path) -> None:
    held = HeldCompiles()
    async with farm(ScriptedPool(held)) as calls:
        jobs = {key_of(job).text: job for job in (JOB, OTHER)}
        watches = {key: await calls.watch(job, priority=PREWARM) for key, job in jobs.items()}
        assert [name[: len(key_of(JOB).text)] for name in kept(tmp_path)] == sorted(jobs)
        # Which comes first is left to the queue.
        first = await held.next()
        first.finish()
        await watches[first.assignment.key].finish()
        assert len(await left(calls, 1, folder=tmp_path)) == 1
        second = await held.next()
        second.finish(CompileFailure(kind=FailureKind.FAILURE_KIND_COMPILE_ERROR, message="no lowering"))
        await watches[second.assignment.key].finish()
        assert await left(calls, 0, folder=tmp_path) == []
        # It is stored: there is nothing left to lose.
        await (await calls.watch(jobs[first.assignment.key], priority=PREWARM)).finish()
        assert await left(calls, 0, folder=tmp_path) == []


async def test_what_was_cut_short_by_a_shutdown_is_done_by_the_next_service(farm: Serve, tmp_path: Path) -> None:
    held = HeldCompiles()
    async with farm(ScriptedPool(held)) as calls:
        await calls.watch(JOB, priority=PREWARM)
        await held.next()
    assert len(kept(tmp_path)) == 1
    async with farm(ScriptedPool()) as calls:
        await done(calls, 1)
    assert kept(tmp_path) == []


async def test_what_was_cancelled_or_refused_is_not_done_later(farm: Serve, tmp_path: Path) -> None:
    held = HeldCompiles()
    config = GatewayConfig(listen="127.0.0.1:0", max_queued_jobs=1)
    async with farm(ScriptedPool(held), config=config) as calls:
        running = await calls.watch(JOB, priority=PREWARM)
        await held.next()
        waiting = await calls.watch(OTHER, priority=PREWARM)
        await calls.wait_until_queued(1)
        refused = await calls.watch(sample_job("torch.cos"), priority=PREWARM)
        with pytest.raises(Refused, match="the queue is full"):
            await refused.finish()
        await calls.cancel(key_of(JOB).text)
        with pytest.raises(Refused, match="cancelled"):
            await running.finish()
        (name,) = await left(calls, 1, folder=tmp_path)
        assert name.startswith(key_of(OTHER).text)
        waiting.cancel()


async def test_what_is_damaged_or_old_is_given_up(farm: Serve, tmp_path: Path) -> None:
    held, clock = HeldCompiles(), ManualClock()
    async with farm(ScriptedPool(held), clock=clock) as calls:
        await calls.watch(JOB, priority=PREWARM)
        await held.next()
    (name,) = kept(tmp_path)
    folder = next((tmp_path / "store" / JOURNAL).iterdir())
    content = (folder / name).read_bytes()
    (folder / f"{name[:-1]}x").write_bytes(content)
    (folder / name).write_bytes(content[:-1] + b"x")
    pool = ScriptedPool()
    async with farm(pool, clock=clock) as calls:
        assert await left(calls, 0, folder=tmp_path) == []
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)
    clock.advance(timedelta(days=8).total_seconds())
    async with farm(pool, clock=clock) as calls:
        assert await left(calls, 0, folder=tmp_path) == []
    assert pool.assignments == []


async def next_look(clock: ManualClock, *, seconds: float = TAKE_OVER_SECONDS) -> None:
    """Lets a gateway look for what others have left."""
    await clock.wait_for_timer(TAKE_OVER_SECONDS)
    clock.advance(seconds)


async def test_what_a_gateway_that_died_had_accepted_is_done_once_by_another_that_runs(tmp_path: Path) -> None:
    program = str(Path(__file__).with_name("killed_gateway.py"))
    process = await asyncio.create_subprocess_exec(sys.executable, program, str(tmp_path), stdout=PIPE)
    assert process.stdout is not None
    address = (await process.stdout.readline()).decode().strip()
    clocks, pools = [ManualClock(), ManualClock()], [ScriptedPool(), ScriptedPool()]
    store = str(tmp_path / "store")
    async with (
        serving(pool=pools[0], store=await open_store(store), clock=clocks[0]),
        serving(pool=pools[1], store=await open_store(store), clock=clocks[1]),
    ):
        async with calling(address) as calls:
            for job in (JOB, OTHER):
                await calls.watch(job, priority=PREWARM, tenant="rollout")
            # While it lives, they are its own.
            for clock in clocks:
                await next_look(clock)
            process.kill()
            await process.wait()
        assert len(kept(tmp_path)) == 2
        assert [pool.assignments for pool in pools] == [[], []]
        while kept(tmp_path):
            for clock in clocks:
                await next_look(clock, seconds=EXPIRY_SECONDS)
                # Its session is renewed, as its leases are, before time passes for the other one: otherwise it is gone.
                await clock.wait_for_timer(RENEWAL_SECONDS, count=2)
                await clock.wait_for_timer(TAKE_OVER_SECONDS)
    done = [assignment.key for pool in pools for assignment in pool.assignments]
    assert sorted(done) == sorted(key_of(job).text for job in (JOB, OTHER))


async def test_a_gateway_that_ends_leaves_what_it_has_accepted_to_the_others_at_once(tmp_path: Path) -> None:
    clock, pool, store = ManualClock(), ScriptedPool(), str(tmp_path / "store")
    async with serving(pool=pool, store=await open_store(store), clock=clock) as staying:
        async with (
            serving(pool=ScriptedPool(HeldCompiles()), store=await open_store(store), clock=ManualClock()) as ending,
            calling(ending.address) as calls,
        ):
            await calls.watch(JOB, priority=PREWARM)
        await next_look(clock)
        async with calling(staying.address) as calls:
            assert await left(calls, 0, folder=tmp_path) == []
    assert [assignment.key for assignment in pool.assignments] == [key_of(JOB).text]


async def test_a_prewarm_that_cannot_be_kept_is_not_accepted(farm: Serve, tmp_path: Path) -> None:
    async with farm(ScriptedPool()) as calls:
        (tmp_path / "store" / JOURNAL).write_bytes(b"no folder")
        with pytest.raises(Refused, match=r"the job cannot be kept .* ask again when the store can be written"):
            await calls.watch(JOB, priority=PREWARM)
        assert (await calls.finish(JOB)).manifest.key == key_of(JOB).text


def test_two_services_do_not_share_a_folder(tmp_path: Path) -> None:
    with using(tmp_path / "state"), pytest.raises(CannotStart, match="--state"), using(tmp_path / "state"):
        pass
    with using(tmp_path / "state"):
        pass


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CannotStart, match="--state"), using(tmp_path / "file" / "state"):
        pass
