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
from compilefarm.service.journal import Journal
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
        clock = clock or ManualClock()
        journal = Journal(tmp_path / "state", clock=clock)
        store = await open_store(str(tmp_path / "store"))
        async with (
            serving(pool=pool, store=store, journal=journal, clock=clock, config=config) as gateway,
            calling(gateway.address) as calls,
        ):
            yield calls
        journal.close()

    return run


def kept(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder / "state") if name != ".lock")


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
        watches = [await calls.watch(job, priority=PREWARM) for job in (JOB, OTHER)]
        assert [name[: len(key_of(JOB).text)] for name in kept(tmp_path)] == sorted(
            key_of(each).text for each in (JOB, OTHER)
        )
        (await held.next()).finish()
        await watches[0].finish()
        assert len(kept(tmp_path)) == 1
        (await held.next()).finish(CompileFailure(kind=FailureKind.FAILURE_KIND_COMPILE_ERROR, message="no lowering"))
        await watches[1].finish()
        assert kept(tmp_path) == []
        # It is stored: there is nothing left to lose.
        await (await calls.watch(JOB, priority=PREWARM)).finish()
        assert kept(tmp_path) == []


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
        assert [name[: len(key_of(JOB).text)] for name in kept(tmp_path)] == [key_of(OTHER).text]
        waiting.cancel()


async def test_what_is_damaged_or_old_is_given_up(farm: Serve, tmp_path: Path) -> None:
    held, clock = HeldCompiles(), ManualClock()
    async with farm(ScriptedPool(held), clock=clock) as calls:
        await calls.watch(JOB, priority=PREWARM)
        await held.next()
    (name,) = kept(tmp_path)
    folder = tmp_path / "state"
    content = (folder / name).read_bytes()
    (folder / f"{name[:-1]}x").write_bytes(content)
    (folder / f"{name}.staging").write_bytes(content[:-3])
    (folder / name).write_bytes(content[:-1] + b"x")
    journal = Journal(folder, clock=clock)
    assert not any(map(journal.read, journal.entries()))
    assert (journal.entries(), kept(tmp_path)) == ([], [])
    journal.close()
    (folder / name).write_bytes(content)
    clock.advance(timedelta(days=8).total_seconds())
    journal = Journal(folder, clock=clock)
    assert not any(map(journal.read, journal.entries()))
    assert (journal.entries(), kept(tmp_path)) == ([], [])
    journal.close()


def test_two_services_do_not_share_a_folder(tmp_path: Path) -> None:
    first = Journal(tmp_path / "state", clock=ManualClock())
    with pytest.raises(CannotStart, match="--state"):
        Journal(tmp_path / "state", clock=ManualClock())
    first.close()
    Journal(tmp_path / "state", clock=ManualClock()).close()


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CannotStart, match="--state"):
        Journal(tmp_path / "file" / "state", clock=ManualClock())
