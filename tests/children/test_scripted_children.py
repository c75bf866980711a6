"""Gateway, supervisor and child processes together, with children that follow a script instead of compiling."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from compilefarm.service.config import GatewayConfig
from compilefarm.service.testing import Calls, calling, sample_job, serving
from compilefarm.v1.compile_service_pb2 import Outcome, Priority
from compilefarm.v1.job_pb2 import FailureKind, Phase
from compilefarm.worker.pool import LocalPool, PoolSettings
from compilefarm.worker.testing import ENVIRONMENT, scripted_command
from tests.processes import alive, descendants, parent_of

JOB, OTHER = (sample_job(target, environment=ENVIRONMENT) for target in ("torch.relu", "torch.sin"))
# In the command of the grandchild of a script that hangs with one.
HANGING = "import signal; signal.pause()"
Farm = Callable[[str], AbstractAsyncContextManager[Calls]]


@pytest.fixture
def farm(tmp_path: Path) -> Farm:
    """A farm of one worker whose children follow a script."""

    @asynccontextmanager
    async def run(script: str) -> AsyncIterator[Calls]:
        command = scripted_command(script)
        pool = LocalPool(PoolSettings(cache_folder=tmp_path, verify=False, command=command))
        config = GatewayConfig(listen="127.0.0.1:0", orphan_seconds=0.0)
        async with serving(pool=pool, config=config) as gateway, calling(gateway.address) as calls:
            yield calls

    return run


async def processes_of_compile(calls: Calls) -> set[int]:
    """The child that has the job and its grandchild."""
    while not (found := {pid for pid in descendants(os.getpid()) if HANGING in command(pid)}):
        await calls.status()
    (grandchild,) = found
    child = parent_of(grandchild)
    assert child is not None
    return {child, grandchild}


def command(pid: int) -> str:
    """What a process runs; empty if it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


async def gone(pids: set[int], calls: Calls) -> None:
    """Waits until none of some processes runs."""
    while alive(pids):
        await calls.status()


async def test_a_compile_that_nobody_waits_for_leaves_no_process(farm: Farm) -> None:
    async with farm("hang-with-grandchild") as calls:
        watch = await calls.watch(JOB)
        await watch.progress(Phase.PHASE_COMPILING)
        children = await processes_of_compile(calls)
        watch.cancel()
        await gone(children, calls)
        while (await calls.status()).running_jobs:
            pass


async def test_a_prewarm_that_makes_room_leaves_no_process(farm: Farm) -> None:
    async with farm("hang-with-grandchild") as calls:
        prewarm = await calls.watch(JOB, priority=Priority.PRIORITY_PREWARM)
        await prewarm.progress(Phase.PHASE_COMPILING)
        children = await processes_of_compile(calls)
        urgent = await calls.watch(OTHER)
        await urgent.progress(Phase.PHASE_COMPILING)
        await gone(children, calls)
        assert (await prewarm.progress(Phase.PHASE_QUEUED)).jobs_ahead == 0


@pytest.mark.parametrize("script", ["die", "exit", "garbage"])
async def test_a_graph_that_ends_its_processes_is_quarantined(farm: Farm, script: str) -> None:
    async with farm(script) as calls:
        first = await calls.finish(JOB)
        second = await asyncio.wait_for(calls.finish(JOB), timeout=60)
    assert (first.outcome, second.outcome) == (Outcome.OUTCOME_COMPILED, Outcome.OUTCOME_QUARANTINED)
    assert first.failure == second.failure
    assert first.failure.kind == FailureKind.FAILURE_KIND_CRASHED
    assert "2 processes died of this graph" in first.failure.message
