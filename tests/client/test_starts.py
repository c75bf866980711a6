"""Pods that start functions without tracing them, with what another pod has published, and trace whatever differs.

The farm has no workers that fit, so that graphs run uncompiled; what Dynamo finds out is the same.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compilefarm.cli.main import main
from compilefarm.core.signatures import new_signing_key
from compilefarm.service.testing import serving_in_thread
from compilefarm.store.opening import open_caches

PUBLISHER = new_signing_key()
NOTHING = "traced: nothing is stored"
RECORDING = "traced: this process records all that it asks for (COMPILEFARM_RECORD)"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("farm")


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    store = asyncio.run(open_caches(str(folder), size_limit_bytes=50_000_000, lifetime_seconds=3600))
    with serving_in_thread(caches=store) as address:
        yield address


def pod(address: str, *changes: str, **variables: str) -> list[dict[str, Any]]:
    """What a pod prints."""
    settings = {"ADDRESS": address, "ON_FAILURE": "eager", **variables}
    done = subprocess.run(
        [sys.executable, "-m", "tests.client.starting_pod", *changes],
        env={**os.environ, **{f"COMPILEFARM_{name}": value for name, value in settings.items()}},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def reader(address: str, *changes: str) -> list[dict[str, Any]]:
    return pod(address, *changes, DYNAMO="reuse", TRUSTED_PACKAGE_KEYS=PUBLISHER.public.text)


@pytest.fixture(scope="module")
def published(folder: Path, address: str) -> list[dict[str, Any]]:
    """What a pod prints that publishes a model, one with a graph break, and one that has no description."""
    (folder / "key.pem").write_bytes(PUBLISHER.pem())
    variables = {"PACKAGE_SIGNING_KEY": str(folder / "key.pem"), "RECORD": str(folder / "recording")}
    return pod(address, "none", "graph break", "lock", DYNAMO="publish", **variables)


def test_the_first_pod_traces(published: list[dict[str, Any]]) -> None:
    model, broken, locked = published
    assert all(each["right"] and each["traced"] for each in published)
    assert model["dynamo"] == [RECORDING]
    assert broken["dynamo"] == [RECORDING, RECORDING]
    (reason,) = locked["dynamo"]
    assert reason.startswith("traced: the model cannot be said: ")
    assert "lock has no description" in reason


@pytest.mark.usefixtures("published")
def test_the_next_pod_traces_nothing_of_what_holds_and_all_that_does_not(address: str) -> None:
    model, *others = reader(address, "none", "hook", "activation", "module", "property")
    assert model == {"right": True, "traced": 0, "dynamo": ["reused"]}
    for each in others:
        assert each["right"]
        assert each["traced"]
        assert each["dynamo"] == [NOTHING]


@pytest.mark.usefixtures("published")
def test_the_first_pod_of_a_farm_that_was_prewarmed_traces_nothing(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = asyncio.run(open_caches(str(tmp_path), size_limit_bytes=50_000_000, lifetime_seconds=3600))
    with serving_in_thread(caches=store) as address:
        # It has no worker for the graphs.
        assert main(["prewarm", "run", str(folder / "recording"), "--address", address]) == 1
        assert "3 packages of Dynamo: 3 published" in capsys.readouterr().out
        assert main(["prewarm", "check", str(folder / "recording"), "--address", address]) == 1
        said = capsys.readouterr().out
        assert "3 packages of Dynamo: 3 stored" in said
        assert "Model.forward is traced by every pod: the model cannot be said" in said
        (broken,) = reader(address, "graph break")
    assert broken == {"right": True, "traced": 0, "dynamo": ["reused", "reused"]}
