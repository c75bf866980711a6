"""Whatever the gateway does, its event loop is free for others: heavy work and files are for threads."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from compilefarm.core.contents import FileContent
from compilefarm.core.digests import digest_of
from compilefarm.core.pool import Artifact, Assignment
from compilefarm.service.testing import ScriptedPool, calling, sample_job, serving_in_thread
from compilefarm.service.testing.pool import OnPhase
from compilefarm.store.opening import open_store
from compilefarm.store.testing import sample_artifact
from compilefarm.v1.job_pb2 import PHASE_COMPILING, Job
from tests.loop_meter import metered_loops

LONGEST_SECONDS = 0.02
PROGRAM = bytes(range(256)) * (16 * 1024 * 1024 // 256)


def large_job(number: int) -> Job:
    """A job of thousands of nodes, which takes long to parse and to give a key."""
    job = sample_job(f"torch.f{number}")
    node = job.graph.nodes[1]
    for _ in range(2000):
        job.graph.nodes.insert(1, node)
    return job


async def compile_much(assignment: Assignment, worker: str, on_phase: OnPhase) -> Artifact:
    """A worker whose artifacts are large, and lie in files, as supervisors hand them over."""
    del worker
    on_phase(PHASE_COMPILING)
    return await asyncio.to_thread(large_artifact, assignment.key)


def large_artifact(key: str) -> Artifact:
    program = key.encode() + PROGRAM
    artifact, content = sample_artifact(key, program=program), FileContent()
    content.write(program)
    return Artifact(manifest=artifact.manifest, blobs={**artifact.blobs, digest_of(program): content})


async def load(address: str) -> None:
    """Callers who want everything at once."""
    async with calling(address) as calls:
        jobs = [sample_job("torch.relu"), sample_job("torch.sin"), *map(large_job, range(2))]
        answers = await asyncio.gather(*(calls.finish(job) for job in jobs for _ in range(5)))
        digests = {answer.manifest.program.digest for answer in answers}
        await asyncio.gather(*map(calls.read, digests), *(calls.status() for _ in range(20)))
        await calls.write(b"a tensor" * 2**20)


def test_no_callback_of_the_gateway_takes_long_or_opens_a_file(tmp_path: Path) -> None:
    store = asyncio.run(open_store(str(tmp_path), cache_bytes=2**26))
    with (
        metered_loops(str(tmp_path)) as use,
        serving_in_thread(store=store, pool=ScriptedPool(compile_much)) as address,
    ):
        asyncio.run(load(address))
    assert use.callbacks > 1000
    assert use.opened == []
    assert use.longest_seconds < LONGEST_SECONDS, use.longest


def test_the_meter_sees_what_takes_long_and_what_opens_files(tmp_path: Path) -> None:
    async def block() -> None:
        until = time.thread_time() + 2 * LONGEST_SECONDS
        while time.thread_time() < until:
            pass
        (tmp_path / "file").write_bytes(b"")

    with metered_loops(str(tmp_path)) as use:
        asyncio.run(asyncio.to_thread(asyncio.run, block()))
    assert use.longest_seconds > LONGEST_SECONDS
    assert str(tmp_path / "file") in use.opened
