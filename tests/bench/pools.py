"""What the pool on Ray costs for each job beside the pool of one host: `python tests/bench/pools.py`.

Children follow a script, so that nothing is compiled; supervisors, fork servers and pipes are the real ones. Both pools
have one worker, on this host, and get their jobs in turn.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from compilefarm.cluster.own_ray import keep_to_this_host
from compilefarm.core.pool import Artifact, Assignment, WorkerPool
from compilefarm.service.testing import sample_job
from compilefarm.worker.pool import LocalPool, PoolSettings
from compilefarm.worker.testing import ENVIRONMENT, scripted_command


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--size", type=int, default=20_000, metavar="BYTES", help="of each artifact")
    asyncio.run(_compare(**vars(parser.parse_args())))


async def _compare(*, jobs: int, size: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        options = (f"--size={size}",)
        command = scripted_command("of-job", *options)
        pools = {
            "local": LocalPool(PoolSettings(cache_folder=Path(folder), shares=2, command=command)),
            "ray": await asyncio.to_thread(_on_ray, Path(folder), options),
        }
        seconds: dict[str, list[float]] = {name: [] for name in pools}
        try:
            for pool in pools.values():
                await pool.start()
            for _ in range(jobs):
                for name, pool in pools.items():
                    seconds[name].append(await _seconds_of_job(pool))
        finally:
            for pool in pools.values():
                await pool.close()
    print(f"{jobs} jobs, artifacts of {size:,} bytes; milliseconds of a job")
    for name, taken in seconds.items():
        tenths = statistics.quantiles(taken, n=10)
        print(f"{name:6} median {1000 * statistics.median(taken):.1f}, nine tenths below {1000 * tenths[-1]:.1f}")


def _on_ray(folder: Path, options: tuple[str, ...]) -> WorkerPool:
    keep_to_this_host()
    from compilefarm.cluster.connection import connect
    from compilefarm.cluster.pool import RayPool
    from compilefarm.cluster.testing import scripted_slots

    connect(None)
    return RayPool(scripted_slots(1, folder=folder, script="of-job", options=options, resources={"CPU": 1}))


async def _seconds_of_job(pool: WorkerPool) -> float:
    (worker,) = pool.workers()
    assignment = Assignment(key="k", job=sample_job(environment=ENVIRONMENT))
    started = time.perf_counter()
    made = await pool.run(assignment, worker=worker.name, on_phase=lambda _: None)
    seconds = time.perf_counter() - started
    assert isinstance(made, Artifact), made
    return seconds


if __name__ == "__main__":
    main()
