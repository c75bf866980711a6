"""Nobody keeps a key from others by the leases of gateways, and what these tell each other does not grow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from obstore.store import MemoryStore

from compilefarm.core.keys import key_of
from compilefarm.service.key_leases import TOLD_SECONDS
from compilefarm.service.sessions import RENEWAL_SECONDS
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
from compilefarm.store.layout import KEY_LEASES, lease_folder
from compilefarm.store.object_backend import ObjectBackend
from compilefarm.store.opening import build_store
from compilefarm.v1.compile_service_pb2 import Outcome, Priority
from compilefarm.v1.job_pb2 import CompileFailure, FailureKind

if TYPE_CHECKING:
    # Exists for type checkers only.
    from obstore import PutResult

JOB, URGENT = sample_job(), sample_job("torch.sin")
KEY = key_of(JOB).text
FAILURE = CompileFailure(kind=FailureKind.FAILURE_KIND_COMPILE_ERROR, message="no lowering")


class SlowStore(MemoryStore):
    """A store of obstore in memory whose answers about leases are late while that is said.

    Attributes:
        late: "put" or "delete", or empty.
        asked: whether somebody waits for such an answer.
        answered: ends the wait.
    """

    def __init__(self) -> None:
        self.late = ""
        self.asked, self.answered = asyncio.Event(), asyncio.Event()

    async def put_async(self, path: str, *arguments: Any, **options: Any) -> PutResult:
        result = await super().put_async(path, *arguments, **options)
        await self._answer("put", path)
        return result

    async def delete_async(self, path: str) -> None:  # type: ignore[override]
        await self._answer("delete", path)
        await super().delete_async(path)

    async def _answer(self, action: str, path: str) -> None:
        if action == self.late and path.startswith(f"{KEY_LEASES}/"):
            self.asked.set()
            await self.answered.wait()


def backend_of(medium: SlowStore) -> ObjectBackend:
    return ObjectBackend(medium, location="a bucket")


@pytest.fixture
async def medium() -> SlowStore:
    return SlowStore()


@asynccontextmanager
async def farm_on(medium: SlowStore) -> AsyncIterator[tuple[Calls, HeldCompiles, ManualClock]]:
    """A gateway with one worker."""
    held, clock = HeldCompiles(), ManualClock()
    store = await build_store(backend_of(medium))
    async with serving(store=store, pool=ScriptedPool(held), clock=clock) as gateway, calling(gateway.address) as calls:
        yield calls, held, clock


async def gone(medium: SlowStore, *, clock: ManualClock) -> None:
    """Lets time pass until no gateway tells others anything of a key. What one is about to do comes in between."""
    while [each async for each in backend_of(medium).objects(KEY_LEASES)]:
        await clock.wait_for_timer(RENEWAL_SECONDS)
        clock.advance(TOLD_SECONDS)


async def test_a_job_that_makes_room_while_its_key_is_leased_keeps_the_key_from_nobody(medium: SlowStore) -> None:
    async with farm_on(medium) as (calls, held, _):
        medium.late = "put"
        prewarm = await calls.watch(JOB, priority=Priority.PRIORITY_PREWARM)
        await medium.asked.wait()
        medium.late = ""
        urgent = await calls.watch(URGENT)
        compile_ = await held.next()
        medium.answered.set()
        compile_.finish()
        await urgent.finish()
        (await asyncio.wait_for(held.next(), 10)).finish()
        assert (await prewarm.finish()).outcome == Outcome.OUTCOME_COMPILED


async def test_a_job_that_is_ended_while_its_key_is_released_keeps_the_key_from_nobody(medium: SlowStore) -> None:
    async with farm_on(medium) as (calls, held, clock):
        prewarm = await calls.watch(JOB, priority=Priority.PRIORITY_PREWARM)
        await held.next()
        medium.late = "delete"
        urgent = await calls.watch(URGENT)
        await medium.asked.wait()
        await calls.cancel(KEY)
        with pytest.raises(Refused, match="operator"):
            await prewarm.finish()
        medium.late = ""
        medium.answered.set()
        (await held.next()).finish()
        await urgent.finish()
        again = await calls.watch(JOB)
        (await asyncio.wait_for(held.next(), 10)).finish()
        assert (await again.finish()).outcome == Outcome.OUTCOME_COMPILED
        await asyncio.wait_for(gone(medium, clock=clock), 10)


async def test_a_job_that_is_ended_while_its_key_is_leased_leaves_no_lease_for_other_gateways(
    medium: SlowStore,
) -> None:
    async with farm_on(medium) as (calls, _, clock):
        medium.late = "put"
        watch = await calls.watch(JOB)
        await medium.asked.wait()
        await calls.cancel(KEY)
        with pytest.raises(Refused, match="operator"):
            await watch.finish()
        medium.answered.set()
        await asyncio.wait_for(gone(medium, clock=clock), 10)


async def test_failures_that_are_told_to_other_gateways_do_not_lie_there_for_ever(medium: SlowStore) -> None:
    async with farm_on(medium) as (calls, held, clock):
        for number in range(3):
            watch = await calls.watch(sample_job(f"torch.f{number}"))
            (await held.next()).finish(FAILURE)
            assert (await watch.finish()).failure == FAILURE
        await asyncio.wait_for(gone(medium, clock=clock), 10)


async def test_files_beside_leases_keep_a_key_from_nobody(medium: SlowStore) -> None:
    """NFS leaves such where a lease is deleted that another gateway reads."""
    backend = backend_of(medium)
    for name in (".nfs000000001", "copy of 0", "0.failed~"):
        await backend.create(f"{lease_folder(KEY)}/{name}", content=b"")
    async with farm_on(medium) as (calls, held, _):
        watch = await calls.watch(JOB)
        (await asyncio.wait_for(held.next(), 10)).finish()
        assert (await watch.finish()).outcome == Outcome.OUTCOME_COMPILED
