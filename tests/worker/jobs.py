"""Jobs for supervisors whose children follow a script."""

from __future__ import annotations

import asyncio

from compilefarm.core.pool import Artifact, Assignment
from compilefarm.v1.job_pb2 import CompileFailure, Job
from compilefarm.worker.supervisor import Supervisor

JOB = Assignment(key="a key", job=Job())


async def hanging_job(supervisor: Supervisor) -> asyncio.Task[Artifact | CompileFailure]:
    """A job whose child hangs by now."""
    begun = asyncio.Event()
    job = asyncio.create_task(supervisor.run(JOB, on_phase=lambda _: begun.set()))
    await begun.wait()
    return job
