"""Jobs for supervisors whose children follow a script."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from compilefarm.core.pool import Artifact, Assignment
from compilefarm.v1.job_pb2 import CompileFailure, Job
from compilefarm.worker.process import ChildSettings
from compilefarm.worker.supervisor import SlotSettings, Supervisor

JOB = Assignment(key="a key", job=Job())


async def hanging_job(supervisor: Supervisor) -> asyncio.Task[Artifact | CompileFailure]:
    """A job whose child hangs by now."""
    begun = asyncio.Event()
    job = asyncio.create_task(supervisor.run(JOB, on_phase=lambda _: begun.set()))
    await begun.wait()
    return job


@contextlib.asynccontextmanager
async def supervising(child: ChildSettings, **settings: Any) -> AsyncIterator[Supervisor]:
    """A supervisor that has started, and ends with the server that its children are forked from.

    Args:
        child: who compiles.
        settings: others of its `SlotSettings`; nobody checks unless they name a verifier.
    """
    async with supervising_slots(child, slots=1, **settings) as (supervisor,):
        yield supervisor


@contextlib.asynccontextmanager
async def supervising_slots(child: ChildSettings, *, slots: int, **settings: Any) -> AsyncIterator[list[Supervisor]]:
    """Several supervisors, as `supervising`, whose children are forked from one server."""
    fields = {"name": "slot", "compiler": child, "verifier": None} | settings
    supervisors = [Supervisor(SlotSettings(**fields)) for _ in range(slots)]
    for supervisor in supervisors:
        await supervisor.start()
    try:
        yield supervisors
    finally:
        for supervisor in supervisors:
            await supervisor.close()
        await child.server.close()
