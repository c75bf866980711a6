"""A node that gets SIGTERM, as before a spot machine is taken away."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from compilefarm.service.testing import calling, sample_job, serving
from compilefarm.v1.compile_service_pb2 import OUTCOME_COMPILED
from compilefarm.v1.job_pb2 import PHASE_QUEUED
from compilefarm.worker.testing import ENVIRONMENT
from tests.cluster.pipes import read_pipe
from tests.cluster.test_ray_pool import connected, slots, spot_nodes

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster

NOTICE_SECONDS = 4
# As `ray start --block` (ray/scripts/scripts.py), which would have the address of the network card for 127.0.0.1.
NODE = """
import json, signal, sys
from ray._private.node import Node
from ray._private.parameter import RayParams

address, resources = sys.argv[1], json.loads(sys.argv[2])
given = dict(gcs_address=address, redis_address=address, resources=resources, num_cpus=0, num_gpus=0)
Node(RayParams(**given, min_worker_port=0, max_worker_port=0), head=False, shutdown_at_exit=True)
while True:
    signal.pause()
"""


async def test_jobs_of_a_node_that_gets_sigterm_go_elsewhere_within_its_notice(
    cluster: Cluster, tmp_path: Path
) -> None:
    begun, gate = tmp_path / "begun", tmp_path / "gate"
    os.mkfifo(begun)
    os.mkfifo(gate)
    ledger = os.open(begun, os.O_RDWR)
    with node_of_its_own(cluster.address, {"spot": 1}, folder=tmp_path) as node:
        given = slots(
            1, tmp_path, script="of-job", options=(f"--gate={gate}", f"--ledger={begun}"), resources={"spot": 1}
        )
        pool = connected(cluster, given)
        async with serving(pool=pool) as gateway, calling(gateway.address) as calls:
            watch = await calls.watch(sample_job(environment=ENVIRONMENT))
            await read_pipe(ledger)
            (first,) = pool.workers()
            with spot_nodes(cluster, 1) as (other,):
                node.send_signal(signal.SIGTERM)
                await watch.progress(PHASE_QUEUED)
                await read_pipe(ledger)
                (second,) = pool.workers()
                assert first.node != second.node == other.node_id
                await asyncio.to_thread(lambda: gate.open("wb").close())
                assert (await watch.finish()).outcome == OUTCOME_COMPILED
                # It has gone by itself: nothing of ours was in its way.
                await asyncio.to_thread(node.wait, NOTICE_SECONDS)
    os.close(ledger)


@contextmanager
def node_of_its_own(address: str, resources: dict[str, float], *, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A node in a process that gets signals."""
    command = [sys.executable, "-c", NODE, address, json.dumps(resources)]
    variables = {**os.environ, "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": str(NOTICE_SECONDS)}
    with (folder / "node.log").open("wb") as log:
        process = subprocess.Popen(command, env=variables, stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.kill()
            process.wait()
