"""Ray's own autoscaler with its provider of fake nodes, processes of this host: from none to two, and back."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from compilefarm.core.pool import DeclaredEnvironment
from compilefarm.service.testing import calling, sample_job, serving
from compilefarm.v1.compile_service_pb2 import OUTCOME_COMPILED
from compilefarm.worker.testing import ENVIRONMENT
from tests.processes import descendants

# A minute: Ray looks for idle nodes every few seconds.
pytestmark = pytest.mark.corpus

LATE = {"late": 1.0}


async def test_nodes_come_for_jobs_that_wait_and_go_when_they_are_idle(own_ray: None, tmp_path: Path) -> None:
    from compilefarm.cluster.connection import connect, node_resources
    from compilefarm.cluster.pool import RayPool
    from compilefarm.cluster.testing import scripted_slots

    def nodes() -> int:
        return sum(1 for node in node_resources() if "late" in node)

    gate = tmp_path / "gate"
    os.mkfifo(gate)
    declared = [DeclaredEnvironment(name="late", device="cpu", python=sys.executable, resources=LATE, most_workers=2)]
    with autoscaled_head(tmp_path) as address:
        connect(address)
        pool = RayPool(
            scripted_slots(
                2,
                folder=tmp_path,
                script="of-job",
                options=(f"--gate={gate}",),
                resources=LATE,
                patience_seconds=1.0,
                idle_seconds=5.0,
                environment_name="late",
            )
        )
        async with serving(pool=pool, declared=declared) as gateway, calling(gateway.address) as calls:
            assert nodes() == 0
            watches = [await calls.watch(sample_job(f"torch.{name}", environment=ENVIRONMENT)) for name in "ab"]
            await until(lambda: nodes() == 2)
            opened = os.open(gate, os.O_RDWR)
            ends = [await watch.finish() for watch in watches]
            os.close(opened)
            assert [end.outcome for end in ends] == [OUTCOME_COMPILED] * 2
            await until(lambda: nodes() == 0)
            assert pool.workers() == []


@contextmanager
def autoscaled_head(folder: Path) -> Iterator[str]:
    """The address of a head whose autoscaler adds up to two nodes."""
    port, other = free_port(), free_port()
    config = folder / "autoscaler.json"
    config.write_text(json.dumps(autoscaler_config(f"127.0.0.1:{port}")))
    command = [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", f"--port={port}"),
        *("--num-cpus=0", "--num-gpus=0", "--include-dashboard=false", "--disable-usage-stats"),
        *("--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0"),
        *(f"--ray-client-server-port={other}", f"--autoscaling-config={config}"),
    ]
    variables = {**os.environ, "RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1"}
    with (folder / "head.log").open("wb") as log:
        process = subprocess.Popen(command, env=variables, stdout=log, stderr=log)
        try:
            wait_for_start(process, log=folder / "head.log")
            yield f"127.0.0.1:{port}"
        finally:
            # Fake nodes are descendants, in sessions of their own.
            for pid in (*descendants(process.pid), process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()


def free_port() -> int:
    """A port on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


def autoscaler_config(address: str) -> Mapping[str, Any]:
    """Of a cluster of fake nodes (ray/autoscaler/_private/fake_multi_node/node_provider.py)."""
    return {
        "cluster_name": "compilefarm",
        "max_workers": 2,
        "upscaling_speed": 10.0,
        "idle_timeout_minutes": 0.05,
        "provider": {
            "type": "fake_multinode",
            "gcs_address": address,
            "use_node_id_as_ip": True,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
        },
        "available_node_types": {
            "ray.head.default": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
            "late": {"resources": {"CPU": 1, "late": 1}, "node_config": {}, "min_workers": 0, "max_workers": 2},
        },
        "head_node_type": "ray.head.default",
        "auth": {},
        "file_mounts": {},
        "cluster_synced_files": [],
        **{f"{when}_commands": [] for when in ("initialization", "setup", "head_setup", "worker_setup")},
        **{f"{kind}_start_ray_commands": [] for kind in ("head", "worker")},
    }


def wait_for_start(process: subprocess.Popen[bytes], *, log: Path) -> None:
    """Returns when the head has its node."""
    while "Ray runtime started" not in log.read_text():
        assert process.poll() is None, log.read_text()
        time.sleep(0.1)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not holds():  # noqa: ASYNC110 - Ray does not say when nodes come and go
            await asyncio.sleep(0.2)
