"""The workers of a farm on Ray: what a cluster is asked for."""

from __future__ import annotations

import importlib.util
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

from compilefarm.cluster.own_ray import keep_to_this_host
from compilefarm.cluster.settings import SlotSettings
from compilefarm.core.pool import DEFAULT_ENVIRONMENT, Toolchains, WorkerPool
from compilefarm.core.starts import StartClock
from compilefarm.service.config import CannotStart
from compilefarm.serving.config import ServeConfig
from compilefarm.serving.pools import cuda_devices, local_pool

Device = Literal["cpu", "cuda"]
Nodes = Sequence[Mapping[str, float]]

# While jobs wait the pool hears of it once a second, and a worker takes some to start.
_LEAST_IDLE_SECONDS = 10
_OWNER = ".owner"


def make_ray_pool(config: ServeConfig, *, toolchains: Toolchains) -> WorkerPool:
    """Connects to a Ray cluster, or starts Ray on this host, and makes a pool of its actors; there are none yet.

    Args:
        config: the settings of the farm.
        toolchains: what is known of C++ compilers from workers that came before.

    Raises:
        CannotStart: Ray is not installed, two environments have one name, one has no interpreter, or the cluster has no
            place for a worker.
        RuntimeError: the cluster cannot be used.
    """
    if importlib.util.find_spec("ray") is None:
        raise CannotStart("--pool ray needs Ray, which is not installed: `pip install 'compilefarm[ray]'`")
    _require_interpreters(config)
    if config.ray_address is None:
        keep_to_this_host()
    # Not before: Ray reads its variables when it is imported.
    from compilefarm.cluster.connection import connect, node_resources
    from compilefarm.cluster.pool import RayPool

    connect(config.ray_address)
    nodes = node_resources()
    slots = [*lasting_slots(config, nodes), *declared_slots(config, nodes)]
    if config.ray_address is None:
        # A Ray of its own ends with the farm.
        return RayPool(slots, toolchains=toolchains)
    owner = owner_of(config.state_folder())
    lasting = [replace(each, owner=owner, lifetime_seconds=config.worker_lifetime) for each in slots]
    return RayPool(lasting, toolchains=toolchains)


def owner_of(state: Path) -> str:
    """The name under which actors are found again by the next gateway with the same state, which is written there.

    Raises:
        CannotStart: it cannot be written.
    """
    path = state / _OWNER
    try:
        state.mkdir(parents=True, exist_ok=True)
        # Of one that was killed while it wrote, it is empty.
        if not path.exists() or not path.read_text():
            path.write_text(secrets.token_hex(16))
        return path.read_text()
    except OSError as error:
        raise CannotStart(f"{path} cannot be written ({error.strerror}): name another folder with --state") from error


def _require_interpreters(config: ServeConfig) -> None:
    config.interpreters()
    for each in config.environments:
        if not each.python:
            raise CannotStart(
                f"environment {each.name} has an image and no python: workers on Ray are started by an interpreter. "
                "Run nodes of that image with a resource of their own, and give python and resources"
            )


def lasting_slots(config: ServeConfig, nodes: Nodes) -> Iterator[SlotSettings]:
    """Workers that are there as long as the farm. Where environments are declared, there are none unless they are asked
    for.
    """
    kind = device_of(config.device, nodes=nodes)
    declared = {each.name for each in config.environments}
    names = [name for name in config.interpreters() if name not in declared]
    count = config.ray_workers or (0 if declared else places(kind, nodes=nodes) * config.slots)
    if count == 0 and not declared:
        raise CannotStart(
            f"no node of the Ray cluster has {'a GPU' if kind == 'cuda' else 'a CPU'} for a worker: add nodes, or say "
            "with --ray-workers for how many workers nodes will come"
        )
    for name in names:
        for number in range(count):
            yield SlotSettings(
                name=f"{_prefix(name)}{kind}-{number}",
                environment_name=name,
                make_pool=partial(pool_of_slot, replace(config, device=kind, slots=1), name),
                resources=share_of_node(kind, nodes=nodes, shares=config.slots * len(names)),
                nodes_come=config.ray_workers is not None,
            )


def declared_slots(config: ServeConfig, nodes: Nodes) -> Iterator[SlotSettings]:
    """Workers that come when jobs wait for them, and go when they are idle; the fewest stay."""
    for each in config.environments:
        for number in range(each.most_workers):
            yield SlotSettings(
                name=f"{each.name}-{each.device}-{number}",
                environment_name=each.name,
                make_pool=partial(pool_of_slot, replace(config, device=each.device, slots=1), each.name),
                resources=share_of_node(each.device, nodes=nodes, shares=config.slots) | dict(each.resources),
                nodes_come=True,
                idle_seconds=max(each.idle_seconds, _LEAST_IDLE_SECONDS) if number >= each.least_workers else None,
            )


def pool_of_slot(config: ServeConfig, environment_name: str, shares: int, toolchains: Toolchains) -> WorkerPool:
    """Makes the pool of a worker on its node, with one slot.

    Args:
        config: the settings of the farm, for the device of this worker.
        environment_name: which of its environments.
        shares: among how many workers the node is shared.
        toolchains: what the gateway knows of C++ compilers.

    Raises:
        RuntimeError: the interpreter has no torch here, sees no GPU, or there is no sandbox.
    """
    clock = StartClock()
    # Ray has set CUDA_VISIBLE_DEVICES to what this worker has.
    devices = cuda_devices(config.device, python=config.interpreters()[environment_name])
    clock.end("devices")
    return local_pool(
        config,
        environment_name=environment_name,
        devices=devices[:1],
        shares=shares,
        toolchains=toolchains,
        clock=clock,
    )


def device_of(asked: Device | Literal["auto"], *, nodes: Nodes) -> Device:
    """What workers compile for: "cuda" or "cpu"; where nothing was asked for, GPUs if some node has one."""
    if asked != "auto":
        return asked
    return "cuda" if any(node.get("GPU") for node in nodes) else "cpu"


def share_of_node(kind: str, *, nodes: Nodes, shares: int) -> dict[str, float]:
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


def places(kind: str, *, nodes: Nodes) -> int:
    """How many GPUs, or nodes with processors, there are."""
    if kind == "cuda":
        return int(sum(node.get("GPU", 0) for node in nodes))
    return sum(1 for node in nodes if node.get("CPU"))


def _prefix(environment_name: str) -> str:
    return "" if environment_name == DEFAULT_ENVIRONMENT else f"{environment_name}-"
