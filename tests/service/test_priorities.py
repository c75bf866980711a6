"""How urgent requests are, and what that does to each other's jobs."""

from __future__ import annotations

import pytest

from compilefarm.service.config import GatewayConfig
from compilefarm.service.testing import HeldCompiles, Refused, ScriptedPool, calling, sample_job, serving
from compilefarm.v1.compile_service_pb2 import Outcome, Priority
from compilefarm.v1.job_pb2 import Phase

PREWARM, BACKGROUND = Priority.PRIORITY_PREWARM, Priority.PRIORITY_BACKGROUND
INTERACTIVE = Priority.PRIORITY_INTERACTIVE
ONE, TWO, THREE = (sample_job(f"torch.f{number}") for number in range(3))


async def test_a_prewarm_makes_room_and_is_done_afterwards_as_if_nothing_had_happened() -> None:
    held = HeldCompiles()
    # A lost attempt would be the last one.
    config = GatewayConfig(listen="127.0.0.1:0", max_attempts=1)
    async with serving(pool=ScriptedPool(held), config=config) as gateway, calling(gateway.address) as calls:
        prewarm = await calls.watch(ONE, priority=PREWARM)
        ended = await held.next()
        ended.enter(Phase.PHASE_COMPILING)
        await prewarm.progress(Phase.PHASE_COMPILING)
        urgent = await calls.watch(TWO)
        running = await held.next()
        assert ended.ended.cancelled(), "its process is ended"
        back = await prewarm.progress(Phase.PHASE_QUEUED)
        running.finish()
        again = await held.next()
        again.finish()
        ends = [await urgent.finish(), await prewarm.finish()]
    assert (back.worker, running.worker) == ("", ended.worker)
    assert again.assignment == ended.assignment
    assert [end.outcome for end in ends] == [Outcome.OUTCOME_COMPILED] * 2


async def test_a_free_worker_is_taken_before_one_that_is_in_use() -> None:
    held = HeldCompiles()
    pool = ScriptedPool(held, environments=[sample_job().environment] * 2)
    async with serving(pool=pool) as gateway, calling(gateway.address) as calls:
        prewarm = await calls.watch(ONE, priority=PREWARM)
        first = await held.next()
        urgent = await calls.watch(TWO)
        second = await held.next()
        first.finish()
        second.finish()
        assert (await prewarm.finish()).outcome == (await urgent.finish()).outcome == Outcome.OUTCOME_COMPILED


async def test_an_interactive_duplicate_lifts_the_job_that_it_joins() -> None:
    held = HeldCompiles()
    async with serving(pool=ScriptedPool(held)) as gateway, calling(gateway.address) as calls:
        watches = [await calls.watch(ONE)]
        running = await held.next()
        watches.append(await calls.watch(TWO, priority=BACKGROUND))
        await calls.wait_until_queued(1)
        watches.append(await calls.watch(THREE, priority=BACKGROUND))
        await calls.wait_until_queued(2)
        watches.append(await calls.watch(THREE))
        running.finish()
        order = [await held.next()]
        order[-1].finish()
        order.append(await held.next())
        order[-1].finish()
        ends = [await watch.finish() for watch in watches]
    assert [each.assignment.job for each in order] == [THREE, TWO]
    assert ends[3].outcome == Outcome.OUTCOME_JOINED


async def test_a_prewarm_that_an_interactive_request_joins_does_not_make_room() -> None:
    held = HeldCompiles()
    async with serving(pool=ScriptedPool(held)) as gateway, calling(gateway.address) as calls:
        watches = [await calls.watch(ONE, priority=PREWARM)]
        running = await held.next()
        watches.append(await calls.watch(ONE, priority=INTERACTIVE))
        watches.append(await calls.watch(TWO))
        await calls.wait_until_queued(1)
        running.finish()
        (await held.next()).finish()
        for watch in watches:
            await watch.finish()
    assert len(held.started) == 2


async def test_a_waiting_prewarm_that_is_lifted_takes_the_worker_of_another_prewarm() -> None:
    held = HeldCompiles()
    async with serving(pool=ScriptedPool(held)) as gateway, calling(gateway.address) as calls:
        watches = [await calls.watch(ONE, priority=PREWARM)]
        first = await held.next()
        watches.append(await calls.watch(TWO, priority=PREWARM))
        await calls.wait_until_queued(1)
        watches.append(await calls.watch(TWO))
        lifted = await held.next()
        lifted.finish()
        (await held.next()).finish()
        for watch in watches:
            await watch.finish()
    assert first.ended.cancelled()
    assert [each.assignment.job for each in held.started] == [ONE, TWO, ONE]


async def test_tenants_share_the_workers() -> None:
    held = HeldCompiles()
    async with serving(pool=ScriptedPool(held)) as gateway, calling(gateway.address) as calls:
        watches = [await calls.watch(ONE, tenant="many")]
        running = await held.next()
        for number, tenant in enumerate(("many", "many", "many", "few")):
            watches.append(await calls.watch(sample_job(f"torch.{tenant}{number}"), tenant=tenant))
            await calls.wait_until_queued(number + 1)
        order = []
        for _ in range(4):
            running.finish()
            running = await held.next()
            order.append(running.assignment.job.graph.nodes[1].call.target)
        running.finish()
        for watch in watches:
            await watch.finish()
    assert order == ["torch.few3", "torch.many0", "torch.many1", "torch.many2"]


async def test_a_priority_that_the_farm_does_not_know_is_refused() -> None:
    async with serving() as gateway, calling(gateway.address) as calls:
        with pytest.raises(Refused, match=r"priority 9 is not known here.*upgrade the farm first") as refused:
            await calls.watch(ONE, priority=9)  # type: ignore[arg-type]
    assert refused.value.reason == "invalid_request"


async def test_a_tenant_of_a_thousand_characters_is_refused() -> None:
    async with serving() as gateway, calling(gateway.address) as calls:
        with pytest.raises(Refused, match="compilefarm-tenant has 1000 characters") as refused:
            await calls.finish(ONE, tenant="x" * 1000)
    assert refused.value.reason == "invalid_request"
