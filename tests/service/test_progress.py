"""What those who wait are told, and when."""

from __future__ import annotations

from compilefarm.service.testing import HeldCompiles, ManualClock, ScriptedPool, calling, sample_job, serving
from compilefarm.v1.job_pb2 import Phase


async def test_every_change_of_phase_is_told_in_order() -> None:
    held, clock = HeldCompiles(), ManualClock()
    async with serving(pool=ScriptedPool(held), clock=clock) as gateway, calling(gateway.address) as calls:
        watch = await calls.watch(sample_job())
        compile_ = await held.next()
        clock.advance(3.0)
        # All at once: none may be swallowed.
        for phase in (Phase.PHASE_COMPILING, Phase.PHASE_TUNING, Phase.PHASE_PACKING):
            compile_.enter(phase)
        told = [(await watch.next()).progress for _ in range(4)]
        clock.advance(4.0)
        compile_.enter(Phase.PHASE_VERIFYING)
        told.append((await watch.next()).progress)
        compile_.finish()
        await watch.finish()
    assert [(progress.phase, progress.worker) for progress in told] == [
        (Phase.PHASE_QUEUED, ""),
        (Phase.PHASE_COMPILING, "worker-0"),
        (Phase.PHASE_TUNING, "worker-0"),
        (Phase.PHASE_PACKING, "worker-0"),
        (Phase.PHASE_VERIFYING, "worker-0"),
    ]
    assert told[3].elapsed_seconds == 3.0
    assert told[4].elapsed_seconds == 7.0


async def test_one_who_joins_is_told_at_once_where_the_job_stands() -> None:
    held, clock = HeldCompiles(), ManualClock()
    async with serving(pool=ScriptedPool(held), clock=clock) as gateway, calling(gateway.address) as calls:
        leader = await calls.watch(sample_job())
        compile_ = await held.next()
        compile_.enter(Phase.PHASE_COMPILING)
        compile_.enter(Phase.PHASE_TUNING)
        clock.advance(5.0)
        joined = await calls.watch(sample_job())
        progress = (await joined.next()).progress
        compile_.finish()
        await leader.finish()
        await joined.finish()
    assert (progress.phase, progress.elapsed_seconds) == (Phase.PHASE_TUNING, 5.0)


async def test_silence_lasts_no_longer_than_ten_seconds() -> None:
    held, clock = HeldCompiles(), ManualClock()
    async with serving(pool=ScriptedPool(held), clock=clock) as gateway, calling(gateway.address) as calls:
        watch = await calls.watch(sample_job())
        compile_ = await held.next()
        compile_.enter(Phase.PHASE_COMPILING)
        await watch.progress(Phase.PHASE_COMPILING)
        for seconds in (10.0, 20.0, 30.0):
            await clock.wait_for_timer(10.0)
            clock.advance(10.0)
            progress = (await watch.next()).progress
            assert (progress.phase, progress.elapsed_seconds) == (Phase.PHASE_COMPILING, seconds)
        compile_.finish()
        await watch.finish()


async def test_jobs_ahead_are_those_that_wait_for_the_same_workers() -> None:
    held, clock = HeldCompiles(), ManualClock()
    async with serving(pool=ScriptedPool(held), clock=clock) as gateway, calling(gateway.address) as calls:
        watches = [await calls.watch(sample_job("torch.f0"))]
        await held.next()
        for number in (1, 2, 3):
            watches.append(await calls.watch(sample_job(f"torch.f{number}")))
            await watches[-1].progress(Phase.PHASE_QUEUED)
            await calls.wait_until_queued(number)
        await clock.wait_for_timer(10.0, count=4)
        clock.advance(10.0)
        ahead = [(await watch.next()).progress.jobs_ahead for watch in watches[1:]]
        held.started[0].finish()
        (await held.next()).enter(Phase.PHASE_COMPILING)
        running = await watches[1].progress(Phase.PHASE_COMPILING)
        await watches[0].finish()
        await clock.wait_for_timer(10.0, count=3)
        clock.advance(10.0)
        later = [(await watch.next()).progress.jobs_ahead for watch in watches[2:]]
    assert ahead == [0, 1, 2]
    assert running.jobs_ahead == 0
    assert later == [0, 1]
