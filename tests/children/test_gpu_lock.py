"""Jobs that share a GPU: what they measure, and in whose presence."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

from compilefarm.core.pool import Artifact, Assignment
from compilefarm.v1.job_pb2 import Job
from compilefarm.worker.gpu_lock import GpuLock, lock_file
from compilefarm.worker.pool import LocalPool, PoolSettings
from compilefarm.worker.sandbox import Sandbox, SandboxUnavailable, open_sandbox
from compilefarm.worker.testing import scripted_command

_HOLD = """
import sys
from pathlib import Path
from compilefarm.worker.gpu_lock import GpuLock
with GpuLock(Path(sys.argv[1])).held():
    print("mine", flush=True)
    sys.stdin.read()
"""


@dataclass(frozen=True, order=True)
class Measurement:
    """When a measurement began and ended, in seconds."""

    began: float
    ended: float


def sandbox_or_none() -> Sandbox | None:
    try:
        return open_sandbox(interpreter=sys.executable, gpu=False)
    except SandboxUnavailable:
        return None


async def measurements_of(pool: LocalPool, *workers: str) -> Sequence[list[Measurement]]:
    """The measurements of workers that begin their jobs together."""
    jobs = [pool.run(Assignment(key=name, job=Job()), worker=name, on_phase=lambda _: None) for name in workers]
    measurements = []
    for made in await asyncio.gather(*jobs):
        assert isinstance(made, Artifact), made
        (content,) = made.blobs.values()
        measurements.append([Measurement(*map(float, line.split())) for line in content.decode().splitlines()])
    return measurements


def overlap(*measurements: Sequence[Measurement]) -> bool:
    return any(
        earlier.ended > later.began for earlier, later in itertools.pairwise(sorted(itertools.chain(*measurements)))
    )


async def test_jobs_of_one_gpu_measure_one_after_the_other(tmp_path: Path) -> None:
    settings = PoolSettings(
        cache_folder=tmp_path,
        cuda_devices=("0", "GPU-1"),
        slots=2,
        command=scripted_command("measure"),
        sandbox=sandbox_or_none(),
    )
    pool = LocalPool(settings)
    await pool.start()
    try:
        # Each GPU has a worker before one has two.
        first, other, second, _ = [view.name for view in pool.workers()]
        one, elsewhere, two = await measurements_of(pool, first, other, second)
    finally:
        await pool.close()
    assert not overlap(one, two)
    assert overlap(one, elsewhere) or overlap(two, elsewhere), "nobody waits for another GPU"


@contextmanager
def somebody_with_the_lock(file: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", _HOLD, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert _lines(process.stdout).readline() == b"mine\n"
            yield process
        finally:
            process.kill()


def _lines(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = lock_file(tmp_path / "gpus", "0")
    assert made is not None
    return made


def test_a_lock_ends_with_the_process_that_held_it(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    with somebody_with_the_lock(file) as process:
        process.kill()
        with GpuLock(file).held():
            pass
    assert not caplog.messages


def test_whoever_keeps_the_lock_is_waited_for_once(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    gpu = GpuLock(file, longest_wait_seconds=0.01)
    with somebody_with_the_lock(file):
        for _ in range(3):
            with gpu.held():
                pass
    (said,) = caplog.messages
    assert "measures beside others" in said
    assert "another job has had the GPU" in said


def test_a_measurement_within_another_waits_for_nobody(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    gpu, stranger = GpuLock(file), GpuLock(file, longest_wait_seconds=0.0)
    with gpu.held(), gpu.held():
        pass
    with stranger.held():
        pass
    assert not caplog.messages
    with gpu.held():
        with gpu.held():
            pass
        # The outer one goes on.
        with stranger.held():
            pass
    assert len(caplog.messages) == 1


def test_without_a_file_jobs_measure_all_the_same(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    assert lock_file(tmp_path / "file" / "gpus", "0") is None
    with GpuLock(None).held(), GpuLock(tmp_path / "missing").held():
        pass
    assert ["jobs that share a GPU" in said or "cannot be locked" in said for said in caplog.messages] == [True, True]
