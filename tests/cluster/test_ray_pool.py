"""The pool on Ray, on a cluster of simulated nodes of this host. Children follow scripts."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from compilefarm.core.digests import digest_of
from compilefarm.core.pool import Artifact, Assignment, DeclaredEnvironment, NoToolchains, Toolchains
from compilefarm.service.testing import calling, sample_job, serving
from compilefarm.v1.admin_service_pb2 import WORKER_STATE_FAILED, WORKER_STATE_IDLE
from compilefarm.v1.compile_service_pb2 import OUTCOME_COMPILED
from compilefarm.v1.job_pb2 import PHASE_COMPILING, PHASE_QUEUED, PHASE_VERIFYING, Job, Phase
from compilefarm.v1.manifest_pb2 import Manifest
from compilefarm.worker.testing import ENVIRONMENT, program_of
from tests.cluster.pipes import read_pipe
from tests.toolchains import KeptToolchains

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster

    from compilefarm.cluster.pool import RayPool
    from compilefarm.cluster.settings import SlotSettings

JOB = sample_job(environment=ENVIRONMENT)
EVERY_MODULE = "compilefarm.serving.farm", "compilefarm.serving.pools", "compilefarm.client", "compilefarm.worker.pool"


SPOT = {"spot": 1}


@contextmanager
def spot_nodes(cluster: Cluster, count: int) -> Iterator[list[Any]]:
    """Simulated machines that may be killed: each has a place for a worker of the test alone."""
    added = [cluster.add_node(num_cpus=0, num_gpus=0, resources=SPOT) for _ in range(count)]
    try:
        yield added
    finally:
        for node in added:
            if node in cluster.list_all_nodes():
                cluster.remove_node(node)


@asynccontextmanager
async def pool_of(
    cluster: Cluster, slots: Sequence[SlotSettings], *, toolchains: Toolchains | None = None
) -> AsyncIterator[RayPool]:
    pool = connected(cluster, slots, toolchains=toolchains)
    try:
        await pool.start()
        yield pool
    finally:
        await pool.close()


def connected(cluster: Cluster, slots: Sequence[SlotSettings], *, toolchains: Toolchains | None = None) -> RayPool:
    from compilefarm.cluster.connection import connect
    from compilefarm.cluster.pool import RayPool

    connect(cluster.address)
    return RayPool(slots, toolchains=toolchains or NoToolchains())


def slots(count: int, folder: Path, **given: Any) -> list[SlotSettings]:
    from compilefarm.cluster.testing import scripted_slots

    return scripted_slots(count, folder=folder, **given)


async def test_a_job_is_compiled_on_a_node_and_comes_back_whole(cluster: Cluster, tmp_path: Path) -> None:
    size_bytes = 5 * 1024 * 1024 + 1
    given = slots(1, tmp_path, script="of-job", options=(f"--size={size_bytes}",))
    async with pool_of(cluster, given) as pool:
        (view,) = pool.workers()
        assert (view.name, view.state) == ("cpu-0", WORKER_STATE_IDLE)
        assert view.host == socket.gethostname()
        assert view.node in [node.node_id for node in cluster.worker_nodes]
        phases: list[Phase.ValueType] = []
        made = await pool.run(Assignment(key="k", job=JOB), worker="cpu-0", on_phase=phases.append)
        assert isinstance(made, Artifact)
        program = program_of(JOB, size_bytes=size_bytes)
        assert dict(made.blobs) == {digest_of(program): program}
        assert made.manifest.program.digest == digest_of(program)
        assert made.manifest.worker == "cpu-0"
        assert phases == [PHASE_COMPILING, PHASE_VERIFYING]

        # An artifact that was stored without a verification goes the other way.
        stored = Manifest()
        stored.CopyFrom(made.manifest)
        stored.ClearField("verification")
        verified = await pool.verify(
            Assignment(key="k", job=JOB), Artifact(manifest=stored, blobs=made.blobs), worker="cpu-0"
        )
        assert isinstance(verified, Artifact)
        assert verified.manifest.verification.load_seconds == 0.25
        assert verified.blobs == made.blobs


async def test_a_worker_that_comes_later_is_told_what_another_has_found_out(cluster: Cluster, tmp_path: Path) -> None:
    known = KeptToolchains()
    for node in ("one", "other"):
        async with pool_of(cluster, slots(1, tmp_path / node), toolchains=known) as pool:
            await asyncio.wait_for(known.kept.wait(), timeout=60)
            (view,) = pool.workers()
            assert [phase.name for phase in view.start] == ["node", "process", "toolchain"]
    found = [path.read_bytes() for node in ("one", "other") for path in (tmp_path / node).glob("toolchain-*")]
    # A scripted child finds out something else each time that it tries.
    assert len(found) == 2
    assert found[0] == found[1] != b""


async def test_children_are_not_told_how_to_reach_ray(cluster: Cluster, tmp_path: Path) -> None:
    assert os.environ["RAY_AUTH_TOKEN"]
    async with pool_of(cluster, slots(1, tmp_path, script="print-variables")) as pool:
        made = await pool.run(Assignment(key="k", job=JOB), worker="cpu-0", on_phase=lambda _: None)
        assert isinstance(made, Artifact)
        (variables,) = made.blobs.values()
        assert b"PATH=" in variables
        assert b"RAY_" not in variables


async def test_a_job_that_is_cancelled_makes_room_for_the_next(cluster: Cluster, tmp_path: Path) -> None:
    async with pool_of(cluster, slots(1, tmp_path, script="hang")) as pool:
        compiling = asyncio.Event()
        first = asyncio.ensure_future(
            pool.run(Assignment(key="k", job=JOB), worker="cpu-0", on_phase=lambda _: compiling.set())
        )
        await compiling.wait()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        ordinary = Assignment(key="k", job=Job(environment=ENVIRONMENT))
        made = await pool.run(ordinary, worker="cpu-0", on_phase=lambda _: None)
        assert isinstance(made, Artifact)


async def test_a_node_that_goes_in_the_middle_of_a_compile_costs_its_callers_a_change_of_phase(
    cluster: Cluster, tmp_path: Path
) -> None:
    begun, gate = tmp_path / "begun", tmp_path / "gate"
    os.mkfifo(begun)
    os.mkfifo(gate)
    # Open at both ends, so that nobody waits who opens it.
    ledger = os.open(begun, os.O_RDWR)
    given = slots(2, tmp_path, script="of-job", options=(f"--gate={gate}", f"--ledger={begun}"), resources=SPOT)
    with spot_nodes(cluster, 2) as both:
        pool = connected(cluster, given)
        async with serving(pool=pool) as gateway, calling(gateway.address) as calls:
            job = sample_job(environment=ENVIRONMENT)
            watch = await calls.watch(job)
            await read_pipe(ledger)
            shown = await calls.status()
            assert {worker.node for worker in shown.workers} == {node.node_id for node in both}
            assert {worker.host for worker in shown.workers} == {socket.gethostname()}
            busy = _busy(shown)
            (first,) = (view for view in pool.workers() if view.name == busy)
            cluster.remove_node(next(node for node in both if node.node_id == first.node), allow_graceful=False)
            queued = await watch.progress(PHASE_QUEUED)
            assert not queued.worker
            await read_pipe(ledger)
            second = _busy(await calls.status())
            assert second != first.name
            await asyncio.to_thread(_open, gate)
            finished = await watch.finish()
            assert finished.outcome == OUTCOME_COMPILED
            assert finished.manifest.worker == second
    os.close(ledger)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 - a pool does not say when a worker changes
            await asyncio.sleep(0.05)


def _busy(status: Any) -> str:
    (worker,) = (worker.name for worker in status.workers if worker.job_key)
    return str(worker)


def _open(gate: Path) -> None:
    gate.open("wb").close()


async def test_workers_come_with_jobs_and_go_when_they_are_idle(cluster: Cluster, tmp_path: Path) -> None:
    pool = connected(cluster, slots(2, tmp_path, idle_seconds=4.0, environment_name="late"))
    declared = [DeclaredEnvironment(name="late", device="cpu", python=sys.executable)]
    async with serving(pool=pool, declared=declared) as gateway, calling(gateway.address) as calls:
        assert pool.workers() == []
        watch = await calls.watch(sample_job(environment=ENVIRONMENT))
        waits_for = (await watch.next()).progress.waits_for
        assert waits_for == "a worker of the environment late: it is declared, not seen yet"
        finished = await watch.finish()
        assert finished.outcome == OUTCOME_COMPILED
        assert finished.manifest.worker == "cpu-0"
        await until(lambda: pool.workers() == [])


async def test_what_no_node_has_is_said(cluster: Cluster, tmp_path: Path) -> None:
    pool = connected(cluster, slots(1, tmp_path, resources={"CPU": 2, "GPU": 1}, patience_seconds=0.5))
    try:
        with pytest.raises(RuntimeError, match="waits for a node that has CPU 2, GPU 1 to spare"):
            await pool.start()
        (view,) = pool.workers()
        assert view.state == WORKER_STATE_FAILED
        assert "CPU 2, GPU 0" in str(view.problem)
    finally:
        await pool.close()


async def test_a_job_says_for_what_its_worker_waits(cluster: Cluster, tmp_path: Path) -> None:
    given = slots(1, tmp_path, resources={"H200": 1}, patience_seconds=0.5, idle_seconds=10.0, environment_name="late")
    declared = [DeclaredEnvironment(name="late", device="cpu", python=sys.executable)]
    pool = connected(cluster, given)
    async with serving(pool=pool, declared=declared) as gateway, calling(gateway.address) as calls:
        watch = await calls.watch(sample_job(environment=ENVIRONMENT))
        await watch.next()
        async with asyncio.timeout(60):
            while not (told := (await calls.list_jobs()).jobs[0].waits_for).startswith("worker cpu-0"):
                pass
        assert "which waits for a node that has H200 1 to spare" in told
        assert told.endswith("none is large enough, so one has to be added")
        watch.cancel()


async def test_a_worker_whose_processes_cannot_start_says_why(cluster: Cluster, tmp_path: Path) -> None:
    pool = connected(cluster, slots(1, tmp_path, script="die-before-ready"))
    try:
        with pytest.raises(
            RuntimeError, match=r"no worker could start on the Ray cluster:\nits process cannot start: it was killed"
        ):
            await pool.start()
    finally:
        await pool.close()


def test_an_address_where_nobody_listens_is_named(cluster: Cluster) -> None:
    from compilefarm.cluster.connection import UnusableCluster, connect

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(UnusableCluster, match=f"nobody listens at the Ray address 127.0.0.1:{port}"):
        connect(f"127.0.0.1:{port}")


def test_an_address_where_another_program_listens_is_named(cluster: Cluster) -> None:
    from compilefarm.cluster.connection import UnusableCluster, connect

    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(UnusableCluster, match=f"what listens at 127.0.0.1:{port} is not the head of a Ray cluster"):
            connect(f"127.0.0.1:{port}", answer_seconds=1)


@pytest.mark.skipif(not os.environ.get("OTHER_TORCH_PYTHON"), reason="the environment with another Ray is not set up")
def test_a_cluster_of_another_ray_is_refused_by_both_versions(cluster: Cluster) -> None:
    import ray

    # In a process of its own: Ray ends one a minute after a cluster that it has asked is gone.
    program = "import sys; from compilefarm.cluster.connection import connect; connect(sys.argv[1])"
    with other_head(os.environ["OTHER_TORCH_PYTHON"]) as (address, version):
        done = subprocess.run([sys.executable, "-c", program, address], capture_output=True, text=True, check=False)
    assert "UnusableCluster" in done.stderr
    assert f"Ray: {version}" in done.stderr
    assert f"Ray: {ray.__version__}" in done.stderr


@contextmanager
def other_head(python: str) -> Iterator[tuple[str, str]]:
    """The address of a cluster that another interpreter has started, and its Ray's version."""
    options = "include_dashboard=False, num_cpus=0, object_store_memory=80_000_000, configure_logging=False"
    program = (
        f"import ray, sys; context = ray.init('local', {options});"
        "print(context.address_info['gcs_address'], ray.__version__, flush=True); sys.stdin.read()"
    )
    command = [python, "-W", "ignore", "-c", program]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        address, version = process.stdout.readline().split()
        yield address, version
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


def test_ray_is_imported_where_it_is_asked_for_alone() -> None:
    program = f"import sys, {', '.join(EVERY_MODULE)}; print('ray' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
