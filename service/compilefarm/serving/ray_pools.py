"""The workers of a farm on Ray: what a cluster is asked for."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

from compilefarm.core.pool import DEFAULT_ENVIRONMENT, WorkerPool
from compilefarm.service.config import CannotStart
from compilefarm.serving.config import ServeConfig
from compilefarm.serving.pools import cuda_devices, local_pool

Device = Literal["cpu", "cuda"]


def make_ray_pool(config: ServeConfig) -> WorkerPool:
    """Connects to a Ray cluster, or starts Ray on this host, and makes a pool of its actors; there are none yet.

    Raises:
        CannotStart: Ray is not installed, two environments have one name, or the cluster has no place for a worker.
        RuntimeError: the cluster cannot be used.
    """
    if importlib.util.find_spec("ray") is None:
        raise CannotStart("--pool ray needs Ray, which is not installed: `pip install 'compilefarm[ray]'`")
    config.interpreters()
    if config.ray_address is None:
        from compilefarm.cluster.own_ray import keep_to_this_host

        keep_to_this_host()
    # Not before: Ray reads its variables when it is imported.
    from compilefarm.cluster.connection import connect, node_resources
    from compilefarm.cluster.pool import RayPool
    from compilefarm.cluster.slot import SlotSettings

    connect(config.ray_address)
    nodes = node_resources()
    kind = device_of(config.device, nodes=nodes)
    resources = share_of_node(kind, nodes=nodes, shares=config.slots * len(config.interpreters()))
    count = config.ray_workers or places(kind, nodes=nodes) * config.slots
    if count == 0:
        raise CannotStart(
            f"no node of the Ray cluster has {'a GPU' if kind == 'cuda' else 'a CPU'} for a worker: add nodes, or say "
            "with --ray-workers for how many workers nodes will come"
        )
    node_config = replace(config, device=kind, slots=1)
    return RayPool(
        [
            SlotSettings(
                name=f"{_prefix(name)}{kind}-{number}",
                environment_name=name,
                make_pool=partial(pool_of_slot, node_config, name),
                resources=resources,
            )
            for name in config.interpreters()
            for number in range(count)
        ]
    )


def pool_of_slot(config: ServeConfig, environment_name: str, shares: int) -> WorkerPool:
    """Makes the pool of a worker on its node, with one slot.

    Args:
        config: the settings of the farm, for the device of this worker.
        environment_name: which of its environments.
        shares: among how many workers the node is shared.

    Raises:
        RuntimeError: the interpreter has no torch here, sees no GPU, or there is no sandbox.
    """
    # Ray has set CUDA_VISIBLE_DEVICES to what this worker has.
    devices = cuda_devices(config.device, python=config.interpreters()[environment_name])
    return local_pool(config, environment_name=environment_name, devices=devices[:1], shares=shares)


def device_of(asked: Device | Literal["auto"], *, nodes: Sequence[Mapping[str, float]]) -> Device:
    """What workers compile for: "cuda" or "cpu"; where nothing was asked for, GPUs if some node has one."""
    if asked != "auto":
        return asked
    return "cuda" if any(node.get("GPU") for node in nodes) else "cpu"


def share_of_node(kind: str, *, nodes: Sequence[Mapping[str, float]], shares: int) -> dict[str, float]:
    """What a worker takes of a node, in Ray's resources: a GPU and a processor, or all processors; or a part of that,
    where there are several.

    Args:
        kind: "cuda" or "cpu".
        nodes: what they have.
        shares: among how many workers a GPU, or the processors of a node, are shared.
    """
    if kind == "cuda":
        return {"GPU": 1 / shares, "CPU": 1}
    # Of the smallest: a worker has to fit everywhere.
    cpus = min((node["CPU"] for node in nodes if node.get("CPU")), default=1) / shares
    # Ray takes parts of one processor, and else whole ones.
    return {"CPU": cpus if cpus < 1 else int(cpus)}


def places(kind: str, *, nodes: Sequence[Mapping[str, float]]) -> int:
    """How many GPUs, or nodes with processors, there are."""
    if kind == "cuda":
        return int(sum(node.get("GPU", 0) for node in nodes))
    return sum(1 for node in nodes if node.get("CPU"))


def _prefix(environment_name: str) -> str:
    return "" if environment_name == DEFAULT_ENVIRONMENT else f"{environment_name}-"
