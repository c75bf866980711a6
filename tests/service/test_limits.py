"""Queues that are full: said at once, with a time to come back and the wait that there would be."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from compilefarm.core.errors import ESTIMATED_WAIT_KEY, RETRY_AFTER_KEY
from compilefarm.service.config import GatewayConfig
from compilefarm.service.testing import (
    Calls,
    HeldCompiles,
    ManualClock,
    Refused,
    ScriptedPool,
    Watch,
    calling,
    sample_job,
    serving,
)
from compilefarm.v1.compile_service_pb2 import Outcome, Priority

PREWARM, BACKGROUND = Priority.PRIORITY_PREWARM, Priority.PRIORITY_BACKGROUND


class Farm:
    """A farm with one worker, which is busy, and room for two jobs of one tenant and three in all."""

    def __init__(self, calls: Calls, held: HeldCompiles, clock: ManualClock) -> None:
        self.calls = calls
        self.held = held
        self.clock = clock
        self.watches: list[Watch] = []

    async def queue(
        self, target: str, *, tenant: str = "", priority: Priority.ValueType = Priority.PRIORITY_INTERACTIVE
    ) -> None:
        """Has a job wait in the queue."""
        queued = (await self.calls.status()).queued_jobs
        self.watches.append(await self.calls.watch(sample_job(target), tenant=tenant, priority=priority))
        await self.calls.wait_until_queued(queued + 1)

    async def refusal(self, target: str, *, tenant: str = "") -> tuple[float, float]:
        """Has a job refused, and returns when to come back and how long the wait is, in seconds."""
        with pytest.raises(Refused, match="the estimated wait is") as refused:
            await self.calls.finish(sample_job(target), tenant=tenant)
        assert (refused.value.status, refused.value.reason) == ("RESOURCE_EXHAUSTED", "busy")
        self.message = refused.value.message
        told = refused.value.metadata
        return float(told[RETRY_AFTER_KEY]), float(told[ESTIMATED_WAIT_KEY])


@pytest.fixture
async def farm() -> AsyncIterator[Farm]:
    held, clock = HeldCompiles(), ManualClock()
    pool = ScriptedPool(held)
    config = GatewayConfig(listen="127.0.0.1:0", max_queued_jobs=3, max_queued_jobs_of_tenant=2)
    async with (
        serving(pool=pool, clock=clock, config=config) as gateway,
        calling(gateway.address) as calls,
    ):
        farm = Farm(calls, held, clock)
        farm.watches.append(await calls.watch(sample_job("torch.running"), tenant="z"))
        await held.next()
        yield farm


async def test_a_full_queue_refuses_with_a_time_to_come_back(farm: Farm) -> None:
    for tenant in "abc":
        await farm.queue(f"torch.{tenant}", tenant=tenant)
    farm.clock.advance(20.0)
    # Every job takes a minute, as far as is known: the one that runs has 40 s to go, three more wait.
    assert await farm.refusal("torch.d", tenant="d") == (40.0, 40.0 + 3 * 60.0)
    assert farm.message.startswith("the queue is full: 3 jobs wait, the estimated wait is 220 s; compile locally, ask ")


async def test_a_tenant_with_too_many_jobs_is_refused_and_others_are_not(farm: Farm) -> None:
    await farm.queue("torch.a0", tenant="a")
    await farm.queue("torch.a1", tenant="a")
    await farm.refusal("torch.a2", tenant="a")
    assert farm.message.startswith("2 jobs of tenant 'a' wait, and more may not, the estimated wait is ")
    await farm.queue("torch.b0", tenant="b")


async def test_callers_without_a_tenant_count_as_one(farm: Farm) -> None:
    await farm.queue("torch.a0")
    await farm.queue("torch.a1")
    assert await farm.refusal("torch.a2") == (60.0, 180.0)
    assert farm.message.startswith("2 jobs of callers without a tenant wait")


async def test_joining_is_not_refused(farm: Farm) -> None:
    for tenant in "abc":
        await farm.queue(f"torch.{tenant}", tenant=tenant)
    joined = await farm.calls.watch(sample_job("torch.a"), tenant="d")
    farm.held.started[0].finish()
    for _ in range(3):
        (await farm.held.next()).finish()
    assert (await joined.finish()).outcome == Outcome.OUTCOME_JOINED


async def test_less_urgent_jobs_are_not_in_the_way(farm: Farm) -> None:
    for number in range(2):
        await farm.queue(f"torch.a{number}", tenant="a", priority=PREWARM)
    await farm.queue("torch.b", tenant="b", priority=PREWARM)
    for number in range(2):
        await farm.queue(f"torch.c{number}", tenant="a", priority=BACKGROUND)
    await farm.queue("torch.d", tenant="a")
    status = await farm.calls.status()
    assert status.queued_jobs == 6


async def test_a_stored_artifact_is_given_though_the_queue_is_full(farm: Farm) -> None:
    farm.held.started[0].finish()
    made = (await farm.watches[0].finish()).manifest
    farm.watches.append(await farm.calls.watch(sample_job("torch.other"), tenant="z"))
    await farm.held.next()
    for tenant in "abc":
        await farm.queue(f"torch.{tenant}", tenant=tenant)
    await farm.refusal("torch.d", tenant="d")
    assert (await farm.calls.finish(sample_job("torch.running"), tenant="d")).manifest == made
