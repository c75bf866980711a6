"""How throughput grows with the workers of the pool on Ray, beside those of one host in the same run, and what the pool
costs for each job.

Children follow a script, so that nothing is compiled and processors decide little; supervisors, fork servers, pipes and
the streams of Ray are the real ones. Both pools are on this host and are measured in turn.
"""

from __future__ import annotations

import asyncio
import importlib.util
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from compilefarm.benchmarks.points import OnPoint, Point
from compilefarm.cluster.own_ray import keep_to_this_host
from compilefarm.core.pool import Artifact, Assignment, WorkerPool
from compilefarm.v1.job_pb2 import Job
from compilefarm.worker.pool import LocalPool, PoolSettings
from compilefarm.worker.testing import ENVIRONMENT, scripted_command

# What a compile takes where throughput is measured, and how many there are for each worker.
_COMPILE_SECONDS = 1.0
_ROUNDS = 8
# Compiles that take no time, one after the other on one worker.
_COST_JOBS = 100
_ARTIFACT_BYTES = 20_000
_PARTS_OF_A_CPU = 0.01
_NO_RAY = "Ray is missing: pip install compilefarm[ray]"


def grow_workers(sizes: Sequence[int], *, folder: Path, on_point: OnPoint) -> None:
    """Measures both pools for each number of workers."""
    if importlib.util.find_spec("ray") is None:
        for size in sizes:
            on_point(Point(axis="workers", size=size, figures={}, reason=_NO_RAY))
        return
    asyncio.run(_grow(sizes, folder=folder, on_point=on_point))


async def _grow(sizes: Sequence[int], *, folder: Path, on_point: OnPoint) -> None:
    # Before the import: Ray reads its variables when it is imported.
    keep_to_this_host()
    from compilefarm.cluster.connection import connect, disconnect

    await asyncio.to_thread(connect, None)
    try:
        costs = await _costs({name: make(1, seconds=0.0, folder=folder) for name, make in _MAKERS.items()})
        for size in sizes:
            figures = {}
            for name, make in _MAKERS.items():
                figures[f"{name} jobs/s"] = await _throughput(make(size, seconds=_COMPILE_SECONDS, folder=folder))
            figures["ray of local"] = figures["ray jobs/s"] / figures["local jobs/s"]
            if size == 1:
                figures |= {f"{name} job seconds": seconds for name, seconds in costs.items()}
                figures["ray more seconds"] = costs["ray"] - costs["local"]
            on_point(Point(axis="workers", size=size, figures=figures))
    finally:
        await asyncio.to_thread(disconnect)


def _options(seconds: float) -> tuple[str, ...]:
    return (f"--size={_ARTIFACT_BYTES}", f"--seconds={seconds}")


def _local(workers: int, *, seconds: float, folder: Path) -> WorkerPool:
    command = scripted_command("of-job", *_options(seconds))
    return LocalPool(PoolSettings(cache_folder=_own(folder), slots=workers, shares=2 * workers, command=command))


def _ray(workers: int, *, seconds: float, folder: Path) -> WorkerPool:
    from compilefarm.cluster.pool import RayPool
    from compilefarm.cluster.testing import scripted_slots

    return RayPool(
        scripted_slots(
            workers,
            folder=_own(folder),
            script="of-job",
            options=_options(seconds),
            resources={"CPU": _PARTS_OF_A_CPU},
        )
    )


_MAKERS = {"local": _local, "ray": _ray}


def _own(folder: Path) -> Path:
    return Path(tempfile.mkdtemp(dir=folder))


async def _costs(pools: Mapping[str, WorkerPool]) -> dict[str, float]:
    """The median of the seconds of a job on the one worker of each pool, in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in pools}
    try:
        for pool in pools.values():
            await pool.start()
        for number in range(_COST_JOBS):
            for name, pool in pools.items():
                seconds[name].append(await _seconds_of_job(pool, number, pool.workers()[0].name))
    finally:
        for pool in pools.values():
            await pool.close()
    return {name: statistics.median(taken) for name, taken in seconds.items()}


async def _throughput(pool: WorkerPool) -> float:
    """Jobs a second, where every worker gets the next job when it has done one."""
    await pool.start()
    try:
        workers = [worker.name for worker in pool.workers()]
        numbers = iter(range(_ROUNDS * len(workers)))
        # The first job of each finds it as the start has left it.
        await asyncio.gather(*(_seconds_of_job(pool, -1 - place, name) for place, name in enumerate(workers)))
        started = time.perf_counter()
        await asyncio.gather(*(_work(pool, numbers, name) for name in workers))
        return _ROUNDS * len(workers) / (time.perf_counter() - started)
    finally:
        await pool.close()


async def _work(pool: WorkerPool, numbers: Iterator[int], worker: str) -> None:
    for number in numbers:
        await _seconds_of_job(pool, number, worker)


async def _seconds_of_job(pool: WorkerPool, number: int, worker: str) -> float:
    job = Job(environment=ENVIRONMENT, hints=[number])
    started = time.perf_counter()
    made = await pool.run(Assignment(key=f"job {number}", job=job), worker=worker, on_phase=lambda _: None)
    seconds = time.perf_counter() - started
    assert isinstance(made, Artifact), made
    return seconds
