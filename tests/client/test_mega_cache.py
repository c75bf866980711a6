"""torch's Mega-Cache by way of a farm: what one pod has pushed, another with empty caches in another folder hits, by
torch's own counters; from Python, and with the command.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compilefarm.client import Farm
from compilefarm.service.testing import serving_in_thread
from compilefarm.store.opening import open_caches
from tests.ends import at_the_oldest
from tests.forked_pods import ForkedPods, forking

ROOT = Path(__file__).resolve().parents[2]
OF_OTHERS = ("TORCH", "TRITON", "COMPILEFARM")


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    store = tmp_path_factory.mktemp("farm")
    caches = asyncio.run(open_caches(str(store), size_limit_bytes=500_000_000, lifetime_seconds=3600))
    with serving_in_thread(caches=caches) as address:
        yield address


def environment(**further: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OF_OTHERS)}
    return {**kept, "TORCH_COMPILE_JOB_ID": "a-job", "OMP_NUM_THREADS": "1", **further}


class Pods:
    """Starts pods of a farm, each with caches of its own in a folder."""

    def __init__(self, forks: ForkedPods, *, farm: str) -> None:
        self._forks = forks
        self._farm = farm

    def run(self, *steps: str, folder: Path) -> dict[str, Any]:
        variables = environment(TORCHINDUCTOR_CACHE_DIR=str(folder), COMPILEFARM_ADDRESS=self._farm)
        ran = self._forks.run("tests.client.bundle_pod", *steps, environment=variables)
        assert ran.returncode == 0, ran.stderr
        return {**json.loads(ran.stdout), "log": ran.stderr}


@pytest.fixture(scope="module")
def pods(farm: str) -> Iterator[Pods]:
    with forking(environment()) as forks:
        yield Pods(forks, farm=farm)


def run_cache(action: str, name: str, *, folder: Path, address: str, expected: int = 0) -> tuple[str, str]:
    """What `compilefarm cache` prints. The folder is an option, so that the variable names another."""
    unused = folder.with_name("unused")
    ran = subprocess.run(
        [sys.executable, "-m", "compilefarm.cli.main", "cache", action, name, "--folder", str(folder)],
        env=environment(TORCHINDUCTOR_CACHE_DIR=str(unused), COMPILEFARM_ADDRESS=address),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ran.returncode == expected, ran.stderr
    assert not unused.exists()
    return ran.stdout, ran.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pods")


@pytest.fixture(scope="module")
def first(pods: Pods, folder: Path) -> dict[str, Any]:
    """What a pod tells that compiles and pushes."""
    return pods.run("pull", "push", folder=folder / "first")


def hits(pod: dict[str, Any]) -> tuple[int, int, int]:
    return pod["fx_graph"]["fxgraph_cache_hit"], pod["aot_autograd"]["autograd_cache_hit"], pod["compiles"]


def test_a_pod_pulls_what_another_has_pushed_and_compiles_nothing(
    first: dict[str, Any], pods: Pods, folder: Path
) -> None:
    assert hits(first) == (0, 0, 2)
    assert "nothing was pushed to it" in first["log"]
    assert first["pushed"]["added"].keys() >= {"inductor", "aot_autograd", "pgo"}
    second = pods.run("pull", "push", folder=folder / "second")
    assert hits(second) == (1, 1, 1)
    assert second["pulled"]["loaded"] == first["pushed"]["added"]
    assert second["log"] == ""


def test_a_second_push_sends_nothing(first: dict[str, Any]) -> None:
    again = first["pushed_again"]
    assert (again["added"], again["sent_bytes"], again["obstacles"]) == ({}, 0, [])


def test_the_command_pushes_the_caches_of_a_machine_and_fills_those_of_another(
    first: dict[str, Any], pods: Pods, farm: str, folder: Path
) -> None:
    told, _ = run_cache("push", "of/machine", folder=folder / "first", address=farm)
    assert told.startswith("bundle of/machine: ")
    assert "0 bytes sent" in told
    told, errors = run_cache("pull", "of/machine", folder=folder / "filled", address=farm)
    assert ("inductor" in told, "pgo" in told, errors) == (True, True, "")
    assert hits(pods.run(folder=folder / "filled")) == (1, 1, 1)


def test_a_bundle_that_is_not_there_is_an_error_of_the_command(farm: str, folder: Path) -> None:
    _, errors = run_cache("pull", "unknown", folder=folder / "empty", address=farm, expected=1)
    assert errors == "left out: nothing was pushed to it that can be read here\n"


@at_the_oldest
def test_a_farm_that_is_down_is_a_line_each_and_no_error(caplog: pytest.LogCaptureFixture) -> None:
    # Nobody listens there.
    farm = Farm("127.0.0.1:1")
    reports = farm.load_cache_artifacts(), farm.save_cache_artifacts()
    assert (reports[0].loaded, reports[1].added) == ({}, {})
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(lines) == 2
    assert all("bundle default" in line and "[unreachable]" in line for line in lines)
