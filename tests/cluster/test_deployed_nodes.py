"""What Ray's own autoscaler makes of the RayCluster and the farm's settings in deploy/. Nothing is deployed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from compilefarm.serving.config import ServeConfig
from compilefarm.serving.flags import read_file
from compilefarm.serving.ray_pools import declared_slots
from tests.cli.test_deploy import named

pytestmark = pytest.mark.usefixtures("own_ray")


def read_by_ray(cluster: Mapping[str, Any]) -> dict[str, Any]:
    """What the autoscaler derives from a RayCluster, held to the schema that Ray has for it."""
    from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr
    from ray.autoscaler._private.util import validate_config

    # KubeRay tells the namespace in which the object was made.
    placed = {**cluster, "metadata": {**cluster["metadata"], "namespace": "compilefarm"}}
    derived: dict[str, Any] = _derive_autoscaling_config_from_ray_cr(placed)
    validate_config(derived)
    return derived


def nodes_for(resources: list[Mapping[str, float]], read: dict[str, Any]) -> tuple[Counter[str], int]:
    """How many nodes of which kind the autoscaler adds for actors that wait, and for how many it never will."""
    from ray.autoscaler.v2.instance_manager.config import AutoscalingConfig
    from ray.autoscaler.v2.scheduler import ResourceDemandScheduler, SchedulingRequest
    from ray.autoscaler.v2.utils import ResourceRequestUtil

    config = AutoscalingConfig(read)
    waiting = ResourceRequestUtil.group_by_count([ResourceRequestUtil.make(dict(each)) for each in resources])
    asked = SchedulingRequest(
        disable_launch_config_check=True,
        node_type_configs=config.get_node_type_configs(),
        max_num_nodes=config.get_max_num_nodes(),
        resource_requests=waiting,
    )
    reply = ResourceDemandScheduler().schedule(asked)
    added = Counter({each.instance_type: each.count for each in reply.to_launch})
    return added, len(reply.infeasible_resource_requests)


def declared_workers(tmp_path: Path) -> list[Mapping[str, float]]:
    """What the workers take that the farm declares in deploy/."""
    file = tmp_path / "farm.toml"
    file.write_text(named("ConfigMap", "compilefarm")["data"]["farm.toml"])
    return [slot.resources for slot in declared_slots(ServeConfig(**read_file(file, ServeConfig)), [])]


def test_nodes_come_for_workers_that_wait_and_none_before(tmp_path: Path) -> None:
    read = read_by_ray(named("RayCluster", "compilefarm-ray"))
    workers = declared_workers(tmp_path)
    assert nodes_for([], read) == (Counter(), 0)
    assert nodes_for(workers[:1], read) == (Counter(gpu=1), 0)
    assert nodes_for(workers, read) == (Counter(gpu=len(workers)), 0)


def test_nodes_of_another_kind_would_never_take_them(tmp_path: Path) -> None:
    cluster = named("RayCluster", "compilefarm-ray")
    (group,) = cluster["spec"]["workerGroupSpecs"]
    group["rayStartParams"] = {"num-gpus": "0"}
    assert nodes_for(declared_workers(tmp_path)[:1], read_by_ray(cluster)) == (Counter(), 1)
