"""What a child without a sandbox starts ends with its job and with its farm, wherever it went."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from compilefarm.core.pool import Artifact
from compilefarm.worker.supervisor import Supervisor
from compilefarm.worker.testing import child_settings
from tests.children.jobs import JOB, hanging_job, supervising, supervising_slots
from tests.processes import alive, is_alive


async def daemon_of(supervisor: Supervisor) -> int:
    """The number of what the hanging child of a supervisor has started; it told before it said that it hangs."""
    while True:
        for child in supervisor._compiler._children:
            if "daemon" in child.log_tail:
                return int(child.log_tail.split()[-1])
        await asyncio.sleep(0)


async def test_it_ends_with_a_job_that_is_done() -> None:
    async with supervising(child_settings("compile-with-daemon")) as supervisor:
        artifact = await supervisor.run(JOB, on_phase=lambda _: None)
        assert isinstance(artifact, Artifact)
        (pid,) = artifact.blobs.values()
        assert not is_alive(int(pid))


async def test_it_ends_with_a_job_that_is_cancelled_and_with_no_other() -> None:
    async with supervising_slots(child_settings("hang-with-daemon"), slots=2) as (one, other):
        jobs = [await hanging_job(one), await hanging_job(other)]
        ends, stays = await daemon_of(one), await daemon_of(other)
        assert alive({ends, stays}) == {ends, stays}
        jobs[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await jobs[0]
        assert alive({ends, stays}) == {stays}
        jobs[1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await jobs[1]
        assert not is_alive(stays)


FARM = """
import asyncio
from compilefarm.worker.testing import child_settings
from tests.children.jobs import hanging_job, supervising
from tests.children.test_descendants import daemon_of

async def main():
    async with supervising(child_settings("hang-with-daemon")) as supervisor:
        job = await hanging_job(supervisor)
        print(await daemon_of(supervisor), flush=True)
        await job

asyncio.run(main())
"""


def test_it_ends_with_a_farm_that_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", FARM], stdout=subprocess.PIPE, text=True) as farm:
        assert farm.stdout is not None
        daemon = int(farm.stdout.readline())
        assert is_alive(daemon)
        farm.kill()
    # The fork server ends it in its own time.
    while is_alive(daemon):
        pass
