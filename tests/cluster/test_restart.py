"""Gateways that are killed while their workers are actors of Ray: workers go on, and are found again or end."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from compilefarm.core.pool import Assignment
from compilefarm.service.testing import calling
from compilefarm.v1.compile_service_pb2 import OUTCOME_COMPILED
from compilefarm.v1.job_pb2 import PHASE_COMPILING
from tests.chaos.farm import KilledFarm, running
from tests.chaos.programs import job_of
from tests.chaos.ray_cluster import RayCluster

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster


async def test_a_gateway_that_starts_again_has_its_workers_and_what_they_compile(
    cluster: Cluster, tmp_path: Path
) -> None:
    with held_farm(cluster, tmp_path) as (farm, ledger):
        await begin("first", farm=farm, ledger=ledger)
        farm.kill()
        farm.start()
        async with calling(farm.address) as calls:
            # The only worker is kept for those who asked before the gateway was gone.
            second = await calls.watch(job_of("second"))
            first = await calls.watch(job_of("first"))
            with (tmp_path / "gate").open("wb"):
                finished = await first.finish()
                assert (await second.finish()).outcome == OUTCOME_COMPILED
        assert finished.outcome == OUTCOME_COMPILED
        assert finished.manifest.worker == "cpu-0"
        assert words(ledger) == ["begun", "finished", "begun", "finished"]


async def test_a_worker_whose_gateway_is_silent_ends_with_its_job(cluster: Cluster, tmp_path: Path) -> None:
    from compilefarm.cluster.actors import find_actors, make_actor
    from compilefarm.cluster.connection import connect, disconnect
    from compilefarm.cluster.testing import scripted_slots

    (settings,) = scripted_slots(
        1, folder=tmp_path, script="hang", owner="somebody", lifetime_seconds=3.0, resources={"CPU": 1}
    )
    connect(cluster.address)
    try:
        actor = make_actor(settings)
        assert await actor.start.remote() is None
        await actor.begin.remote("work", Assignment(key="k", job=job_of("first")))
        assert (await actor.news.remote("work", 0)).phases == (PHASE_COMPILING,)
        assert ray_of(cluster).children()
        # Nobody asks for it any more.
        await until(lambda: not ray_of(cluster).children())
        await until(lambda: not find_actors([settings]))
    finally:
        disconnect()


@contextmanager
def held_farm(cluster: Cluster, folder: Path) -> Iterator[tuple[KilledFarm, Path]]:
    """A farm of one worker whose compiles wait at a gate, and the file that tells of them."""
    gate, ledger = folder / "gate", folder / "ledger"
    os.mkfifo(gate)
    ledger.touch()
    child = (f"--gate={gate}", f"--ledger={ledger}")
    with running(folder / "farm", options=("--slots=1",), child=child, cluster=ray_of(cluster)) as farm:
        yield farm, ledger
    end_actors(cluster)


def end_actors(cluster: Cluster) -> None:
    """Ends what a gateway has left: others need the place."""
    import ray
    from ray.util import list_named_actors

    from compilefarm.cluster.connection import connect, disconnect

    connect(cluster.address)
    for name in list_named_actors():
        ray.kill(ray.get_actor(name))
    disconnect()


def ray_of(cluster: Cluster) -> RayCluster:
    """The cluster of the tests as one for gateways that are killed."""
    (node,) = cluster.worker_nodes
    (raylet,) = node.all_processes["raylet"]
    return RayCluster(address=cluster.address, node_process=raylet.process.pid)


async def begin(name: str, *, farm: KilledFarm, ledger: Path) -> None:
    """Asks for a compile, and returns when it has begun."""
    async with calling(farm.address) as calls:
        await calls.watch(job_of(name))
        await until(lambda: bool(words(ledger)))


def words(ledger: Path) -> list[str]:
    """What the children have told, in order."""
    return [line.split()[0] for line in ledger.read_text().splitlines()]


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 - processes do not say when they end
            await asyncio.sleep(0.05)
