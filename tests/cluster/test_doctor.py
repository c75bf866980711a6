"""`compilefarm doctor` about a Ray cluster and the environments that a farm declares for it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli.commands import run_command

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster

FILE = """
pool = "ray"
ray-address = "{address}"

[environments.fine]
python = "{python}"
device = "cpu"

[environments.broken]
python = "/nowhere/python"
device = "cpu"

[environments.empty]
python = "/usr/bin/env"
device = "cpu"

[environments.never]
python = "{python}"
device = "cuda"
resources = {{H200 = 1}}
"""


def test_each_environment_that_cannot_have_workers_is_told_with_the_reason(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "farm.toml"
    file.write_text(FILE.format(address=cluster.address, python=sys.executable))
    assert run_command("doctor", "--config", str(file), "--json") == 1
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert {name for name, check in checks.items() if check["state"] == "failed"} == {
        "ray: interpreter of broken",
        "ray: interpreter of empty",
    }
    assert checks["ray: place for never"]["state"] == "warning"
    assert "2 nodes" in checks["ray"]["finding"]
    assert "/nowhere/python cannot start workers on" in checks["ray: interpreter of broken"]["finding"]
    assert "No such file" in checks["ray: interpreter of broken"]["finding"]
    never = checks["ray: place for never"]["finding"]
    assert "waits for a node that has GPU 1, CPU 1, H200 1" in never
    assert never.endswith("none is large enough, so one has to be added")
    assert all(check["remedy"] for check in checks.values() if check["state"] != "ok")


def test_an_address_where_nobody_listens_is_told(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("doctor", "--ray-address", "127.0.0.1:1", "--json") == 1
    (check,) = json.loads(capsys.readouterr().out)["checks"]
    assert check["state"] == "failed"
    assert check["finding"].startswith("nobody listens at the Ray address 127.0.0.1:1 ")
    assert check["remedy"].startswith("give the address that `ray start --head` printed")


def test_a_file_without_a_cluster_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "farm.toml"
    file.write_text("slots = 2\n")
    assert run_command("doctor", "--config", str(file), "--json") == 0
    (check,) = json.loads(capsys.readouterr().out)["checks"]
    assert "names no ray-address" in check["finding"]
