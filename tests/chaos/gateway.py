"""A gateway to be killed: `python -m tests.chaos.gateway FOLDER [options] [options of its children]`.

As `compilefarm serve`, with scripted children behind the real supervisors and pipes, on this host or as actors of a Ray
cluster. Store and journal are in FOLDER.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from pathlib import Path

from compilefarm.core.pool import WorkerPool
from compilefarm.service.config import GatewayConfig
from compilefarm.service.testing import ScriptedPool, serving
from compilefarm.serving.farm import READY_LINE
from compilefarm.serving.ray_pools import owner_of
from compilefarm.store.opening import open_store
from compilefarm.worker.pool import LocalPool, PoolSettings
from tests.chaos.ray_cluster import WORKER_RESOURCES

_CHILD = (sys.executable, "-m", "compilefarm.worker.testing", "of-job")
# As `compilefarm serve` has it.
_CACHE_BYTES = 256 * 10**6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--listen", default="127.0.0.1:0")
    parser.add_argument("--slots", type=int, default=2, help="0: one worker within the gateway")
    parser.add_argument("--orphan-grace", type=float, default=60.0)
    parser.add_argument("--ray-address", help="of the cluster that has the workers")
    arguments, arguments.child = parser.parse_known_args()
    logging.basicConfig(level=logging.WARNING)
    asyncio.run(_serve(arguments))


async def _serve(arguments: argparse.Namespace) -> None:
    folder = arguments.folder
    async with serving(
        pool=_pool(arguments),
        store=await open_store(str(folder / "store"), cache_bytes=_CACHE_BYTES),
        config=GatewayConfig(listen=arguments.listen, orphan_seconds=arguments.orphan_grace),
    ) as gateway:
        print(f"{READY_LINE}{gateway.address}", flush=True)
        await asyncio.Event().wait()


def _pool(arguments: argparse.Namespace) -> WorkerPool:
    if arguments.slots == 0:
        return ScriptedPool()
    cache = arguments.folder / "cache"
    cache.mkdir(exist_ok=True)
    if arguments.ray_address is not None:
        return _ray_pool(arguments, cache)
    return LocalPool(
        PoolSettings(slots=arguments.slots, cache_folder=cache, verify=False, command=(*_CHILD, *arguments.child))
    )


def _ray_pool(arguments: argparse.Namespace, cache: Path) -> WorkerPool:
    from compilefarm.cluster.connection import connect
    from compilefarm.cluster.pool import RayPool
    from compilefarm.cluster.testing import scripted_slots

    connect(arguments.ray_address)
    slots = scripted_slots(
        arguments.slots,
        folder=cache,
        script="of-job",
        options=arguments.child,
        resources=WORKER_RESOURCES,
        owner=owner_of(arguments.folder / "state"),
        verify=False,
    )
    return RayPool(slots)


if __name__ == "__main__":
    main()
