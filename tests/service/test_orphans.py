"""Jobs for which nobody waits any more: their workers are wanted for others."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from compilefarm.service.config import GatewayConfig
from compilefarm.service.testing import Calls, HeldCompiles, ManualClock, ScriptedPool, calling, sample_job, serving
from compilefarm.v1.compile_service_pb2 import Outcome, Priority

PREWARM, BACKGROUND = Priority.PRIORITY_PREWARM, Priority.PRIORITY_BACKGROUND
GRACE = 25.0
CONFIG = GatewayConfig(listen="127.0.0.1:0", orphan_seconds=GRACE)
ONE, TWO = sample_job("torch.relu"), sample_job("torch.sin")


@pytest.fixture
def held() -> HeldCompiles:
    return HeldCompiles()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def calls(held: HeldCompiles, clock: ManualClock) -> AsyncIterator[Calls]:
    pool = ScriptedPool(held)
    async with serving(pool=pool, clock=clock, config=CONFIG) as gateway, calling(gateway.address) as calls:
        yield calls


async def test_the_worker_is_freed_when_nobody_has_come_back_within_the_grace_time(
    calls: Calls, held: HeldCompiles, clock: ManualClock
) -> None:
    watches = [await calls.watch(ONE), await calls.watch(ONE)]
    abandoned = await held.next()
    for watch in watches:
        watch.cancel()
    await clock.wait_for_timer(GRACE)
    clock.advance(GRACE - 1)
    assert (await calls.status()).running_jobs == 1
    other = await calls.watch(TWO)
    await calls.wait_until_queued(1)
    clock.advance(1)
    (await held.next()).finish()
    assert (await other.finish()).HasField("manifest")
    assert abandoned.ended.cancelled()
    assert [each.assignment.job for each in held.started] == [ONE, TWO]


async def test_a_job_that_waits_leaves_the_queue(calls: Calls, held: HeldCompiles, clock: ManualClock) -> None:
    running = await calls.watch(ONE)
    compile_ = await held.next()
    waiting = await calls.watch(TWO)
    await calls.wait_until_queued(1)
    waiting.cancel()
    await clock.wait_for_timer(GRACE)
    clock.advance(GRACE)
    await calls.wait_until_queued(0)
    compile_.finish()
    await running.finish()
    assert len(held.started) == 1


async def test_one_who_comes_back_within_the_grace_time_finds_the_job_going_on(
    calls: Calls, held: HeldCompiles, clock: ManualClock
) -> None:
    first = await calls.watch(ONE)
    compile_ = await held.next()
    first.cancel()
    await clock.wait_for_timer(GRACE)
    clock.advance(GRACE - 1)
    second = await calls.watch(ONE)
    clock.advance(GRACE)
    # The grace time begins anew when that one goes away too.
    second.cancel()
    await clock.wait_for_timer(GRACE)
    clock.advance(GRACE - 1)
    third = await calls.watch(ONE)
    compile_.finish()
    assert (await third.finish()).outcome == Outcome.OUTCOME_JOINED
    assert len(held.started) == 1


async def test_one_who_comes_too_late_gets_a_compile_of_his_own(
    calls: Calls, held: HeldCompiles, clock: ManualClock
) -> None:
    first = await calls.watch(ONE)
    abandoned = await held.next()
    first.cancel()
    await clock.wait_for_timer(GRACE)
    # In the very moment in which the job is given up: its worker is not free yet.
    clock.advance(GRACE)
    second = await calls.watch(ONE)
    (await held.next()).finish()
    assert (await second.finish()).outcome == Outcome.OUTCOME_COMPILED
    assert abandoned.ended.cancelled()


async def test_a_prewarm_is_done_though_nobody_waits(calls: Calls, held: HeldCompiles, clock: ManualClock) -> None:
    prewarm = await calls.watch(ONE, priority=PREWARM)
    compile_ = await held.next()
    prewarm.cancel()
    other = await calls.watch(TWO, priority=BACKGROUND)
    await calls.wait_until_queued(1)
    clock.advance(2 * GRACE)
    compile_.finish()
    (await held.next()).finish()
    await other.finish()
    assert (await calls.finish(ONE)).HasField("manifest")
    assert len(held.started) == 2


@pytest.mark.parametrize("seconds", [GRACE - 1, GRACE])
async def test_a_prewarm_that_was_lifted_becomes_one_again_after_the_grace_time(
    calls: Calls, held: HeldCompiles, clock: ManualClock, seconds: float
) -> None:
    prewarm = await calls.watch(ONE, priority=PREWARM)
    first = await held.next()
    urgent = await calls.watch(ONE)
    urgent.cancel()
    await clock.wait_for_timer(GRACE)
    other = await calls.watch(TWO)
    await calls.wait_until_queued(1)
    clock.advance(seconds)
    if seconds < GRACE:
        # It may come back, so the job is as urgent as it was.
        assert (await calls.status()).queued_jobs == 1
        first.finish()
    (await held.next()).finish()
    await other.finish()
    if seconds == GRACE:
        (await held.next()).finish()
    assert (await prewarm.finish()).HasField("manifest")
    assert first.ended.cancelled() == (seconds == GRACE)
