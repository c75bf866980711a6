"""A job that is given up at whatever moment leaves nothing in the store that is there for its sake alone."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from obstore.store import MemoryStore

from compilefarm.core.keys import key_of
from compilefarm.core.pool import Artifact, Assignment
from compilefarm.service.config import GatewayConfig
from compilefarm.service.key_leases import TOLD_SECONDS
from compilefarm.service.testing import Calls, ManualClock, Refused, ScriptedPool, calling, sample_job, serving
from compilefarm.service.testing.pool import OnPhase, compile_at_once
from compilefarm.store.layout import JOURNAL, KEY_LEASES, PROBES
from compilefarm.store.object_backend import ObjectBackend
from compilefarm.store.opening import build_store
from compilefarm.v1.compile_service_pb2 import Priority

if TYPE_CHECKING:
    # Exists for type checkers only.
    from obstore import GetResult, ListResult, PutResult

JOB = sample_job()


class SteppedStore(MemoryStore):
    """A store of obstore in memory of which one answer is late.

    Attributes:
        left: so many are in time before it; none is late while this is negative.
        is_full: whether nothing can be written.
        fills_up: whether that begins when something is compiled.
        late, answered: whether it is asked for, and ends the wait.
    """

    def __init__(self) -> None:
        self.left = -1
        self.is_full = self.fills_up = False
        self.late, self.answered = asyncio.Event(), asyncio.Event()

    async def put_async(self, path: str, *arguments: Any, **options: Any) -> PutResult:
        if self.is_full:
            raise OSError(28, "No space left on device")
        result = await super().put_async(path, *arguments, **options)
        await self._step()
        return result

    async def get_async(self, path: str, *arguments: Any, **options: Any) -> GetResult:
        await self._step()
        return await super().get_async(path, *arguments, **options)

    async def delete_async(self, path: str) -> None:  # type: ignore[override]
        await self._step()
        await super().delete_async(path)

    async def list_with_delimiter_async(self, *arguments: Any, **options: Any) -> ListResult[Any]:  # type: ignore[override]
        await self._step()
        return await super().list_with_delimiter_async(*arguments, **options)

    async def _step(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.late.set()
            await self.answered.wait()


async def given_up_at(step: int, *, priority: Priority.ValueType) -> bool:
    """Has a job given up while it waits for an answer of the store, and waits until nothing lies there for its sake.
    Returns False if it needs fewer answers.
    """
    medium, clock = SteppedStore(), ManualClock()
    backend = ObjectBackend(medium, location="a bucket")
    config = GatewayConfig(listen="127.0.0.1:0", orphan_seconds=0.0)
    pool = ScriptedPool(partial(_compile, medium))
    async with (
        serving(store=await build_store(backend), pool=pool, config=config, clock=clock) as gateway,
        calling(gateway.address) as calls,
    ):
        # The artifact of this one cannot be stored, so that the store is tried before the next is compiled.
        medium.fills_up = True
        with pytest.raises(Refused, match="could not be stored"):
            await calls.finish(sample_job("torch.sin"))
        medium.fills_up = medium.is_full = False
        medium.left = step
        watching = asyncio.create_task(_ask(calls, priority=priority))
        late = asyncio.create_task(medium.late.wait())
        await asyncio.wait([watching, late], return_when=asyncio.FIRST_COMPLETED)
        if not late.done():
            late.cancel()
            medium.left = -1
            return False
        with suppress(Refused):
            await calls.cancel(key_of(JOB).text)
        watching.cancel()
        await asyncio.wait([watching])
        medium.answered.set()
        while await _left(backend):
            clock.advance(TOLD_SECONDS)
            await calls.status()
    return True


async def _compile(medium: SteppedStore, assignment: Assignment, worker: str, on_phase: OnPhase) -> Artifact:
    medium.is_full = medium.fills_up
    return await compile_at_once(assignment, worker, on_phase)


async def _left(backend: ObjectBackend) -> list[str]:
    return [each.path for folder in (KEY_LEASES, JOURNAL, PROBES) async for each in backend.objects(folder)]


async def _ask(calls: Calls, *, priority: Priority.ValueType) -> None:
    watch = await calls.watch(JOB, priority=priority)
    await watch.finish()


@pytest.mark.parametrize("priority", [Priority.PRIORITY_INTERACTIVE, Priority.PRIORITY_PREWARM])
async def test_a_job_that_is_given_up_leaves_nothing(priority: Priority.ValueType) -> None:
    step = 1
    while await asyncio.wait_for(given_up_at(step, priority=priority), 10):
        step += 1
    assert step > 10
