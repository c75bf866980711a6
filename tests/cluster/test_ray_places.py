"""What a farm asks a Ray cluster for. Nothing runs on Ray here."""

from __future__ import annotations

import sys

import pytest

from compilefarm.core.pool import DeclaredEnvironment
from compilefarm.service.config import CannotStart
from compilefarm.serving.config import ServeConfig
from compilefarm.serving.ray_pools import declared_slots, device_of, lasting_slots, places, share_of_node

HEAD = {"CPU": 0.0}
CPU_NODE = {"CPU": 16.0}
GPU_NODE = {"CPU": 64.0, "GPU": 8.0}
LATE = DeclaredEnvironment(
    name="late", device="cuda", python=sys.executable, resources={"H200": 1}, least_workers=1, most_workers=3
)


def test_gpus_are_taken_where_there_are_some() -> None:
    assert device_of("auto", nodes=[HEAD, CPU_NODE]) == "cpu"
    assert device_of("auto", nodes=[HEAD, CPU_NODE, GPU_NODE]) == "cuda"
    assert device_of("cpu", nodes=[GPU_NODE]) == "cpu"


def test_there_is_a_worker_for_each_gpu_or_for_each_node_with_processors() -> None:
    assert places("cuda", nodes=[HEAD, GPU_NODE, GPU_NODE]) == 16
    assert places("cpu", nodes=[HEAD, CPU_NODE, GPU_NODE]) == 2


def test_a_worker_takes_a_gpu_or_the_processors_of_the_smallest_node() -> None:
    assert share_of_node("cuda", nodes=[GPU_NODE], shares=1) == {"GPU": 1, "CPU": 1}
    assert share_of_node("cuda", nodes=[GPU_NODE], shares=2) == {"GPU": 0.5, "CPU": 1}
    assert share_of_node("cpu", nodes=[HEAD, CPU_NODE, GPU_NODE], shares=3) == {"CPU": 5}
    # Ray takes parts of one processor, and else whole ones.
    assert share_of_node("cpu", nodes=[{"CPU": 1.0}], shares=2) == {"CPU": 0.5}


def test_without_a_place_a_farm_does_not_start_unless_nodes_will_come() -> None:
    config = ServeConfig(pool="ray", device="cuda")
    with pytest.raises(CannotStart, match="no node of the Ray cluster has a GPU for a worker: add nodes"):
        list(lasting_slots(config, [HEAD, CPU_NODE]))
    asked = list(lasting_slots(ServeConfig(pool="ray", device="cuda", ray_workers=2), [HEAD]))
    assert [slot.name for slot in asked] == ["cuda-0", "cuda-1"]
    assert all(slot.nodes_come and slot.idle_seconds is None for slot in asked)


def test_a_declared_environment_keeps_the_fewest_workers_and_has_the_others_come_and_go() -> None:
    config = ServeConfig(pool="ray", environments=(LATE,))
    assert list(lasting_slots(config, [HEAD])) == []
    slots = list(declared_slots(config, [HEAD]))
    assert [(slot.name, slot.idle_seconds) for slot in slots] == [
        ("late-cuda-0", None),
        ("late-cuda-1", 300),
        ("late-cuda-2", 300),
    ]
    assert {slot.environment_name for slot in slots} == {"late"}
    assert all(slot.resources == {"GPU": 1, "CPU": 1, "H200": 1} for slot in slots)
