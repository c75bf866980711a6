"""Pods that start functions without tracing them, with what another pod has published, and trace whatever differs.

The farm has no workers that fit, so that graphs run uncompiled; what Dynamo finds out is the same.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compilefarm.cli.main import main
from compilefarm.client.clock import SystemClock
from compilefarm.client.config import ClientConfig
from compilefarm.client.connection import Connection
from compilefarm.client.farm_packages import FarmPackages
from compilefarm.client.trust import Trust
from compilefarm.core.dynamo_packages import Variant
from compilefarm.core.signatures import new_signing_key
from compilefarm.service.testing import serving_in_thread
from compilefarm.store.opening import open_caches
from tests.forked_pods import ForkedPods
from tests.lean import LEAN

ROOT = Path(__file__).resolve().parents[2]
PUBLISHER = new_signing_key()
NOTHING = "traced: nothing is stored"
RECORDING = "traced: this process records all that it asks for (COMPILEFARM_RECORD)"
COMPARED = "traced: this process compares packages with traces"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("farm")


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    store = asyncio.run(open_caches(str(folder), size_limit_bytes=50_000_000, lifetime_seconds=3600))
    with serving_in_thread(caches=store) as address:
        yield address


def environment(address: str, **variables: str) -> dict[str, str]:
    settings = {"ADDRESS": address, "ON_FAILURE": "eager", **variables}
    return {**os.environ, **{f"COMPILEFARM_{name}": value for name, value in settings.items()}}


class Readers:
    """Starts pods that trust the publisher."""

    def __init__(self, forks: ForkedPods) -> None:
        self._forks = forks

    def read(self, address: str, *changes: str, **variables: str) -> list[dict[str, Any]]:
        """What a pod prints."""
        trusting = environment(address, DYNAMO="reuse", TRUSTED_PACKAGE_KEYS=PUBLISHER.public.text, **variables)
        return printed(self._forks.run("tests.client.starting_pod", *changes, environment=trusting))

    def compare(self, address: str, *changes: str) -> list[dict[str, Any]]:
        """What a canary prints."""
        return self.read(address, *changes, DYNAMO_CANARY="1")


def printed(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def readers(forks: ForkedPods) -> Readers:
    return Readers(forks)


@pytest.fixture(scope="module")
def published(folder: Path, address: str) -> list[dict[str, Any]]:
    """What a pod prints that publishes a model, one with a graph break, and one that has no description. It is no
    fork of what those that read are, which have another seed of hashes.
    """
    (folder / "key.pem").write_bytes(PUBLISHER.pem())
    variables = {"PACKAGE_SIGNING_KEY": str(folder / "key.pem"), "RECORD": str(folder / "recording")}
    command = [sys.executable, LEAN, "-m", "tests.client.starting_pod", "none", "graph break", "lock"]
    publishing = environment(address, DYNAMO="publish", **variables)
    return printed(
        subprocess.run(command, env=publishing, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    )


def test_the_first_pod_traces(published: list[dict[str, Any]]) -> None:
    model, broken, locked = published
    assert all(each["right"] and each["traced"] for each in published)
    assert model["dynamo"] == [RECORDING]
    assert broken["dynamo"] == [RECORDING, RECORDING]
    (reason,) = locked["dynamo"]
    assert reason.startswith("traced: the model cannot be said: ")
    assert "lock has no description" in reason


@pytest.mark.usefixtures("published")
def test_the_next_pod_traces_nothing_of_what_holds_and_all_that_does_not(address: str, readers: Readers) -> None:
    model, *others = readers.read(address, "none", "hook", "activation", "module", "property")
    # Who encodes no graph does not import what does.
    assert model == {"right": True, "traced": 0, "dynamo": ["reused"], "compared": [], "can encode": False}
    for each in others:
        assert each["right"]
        assert each["traced"]
        assert each["dynamo"] == [NOTHING]


@pytest.mark.usefixtures("published")
def test_the_first_pod_of_a_farm_that_was_prewarmed_traces_nothing(
    folder: Path, readers: Readers, tmp_path: Path, capsys: pytest.CaptureFixture[str]
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
        (broken,) = readers.read(address, "graph break")
    assert broken == {"right": True, "traced": 0, "dynamo": ["reused", "reused"], "compared": [], "can encode": False}


@pytest.mark.usefixtures("published")
def test_a_canary_traces_what_holds_and_finds_it_the_same(address: str, readers: Readers) -> None:
    model, broken, changed = readers.compare(address, "none", "graph break", "activation")
    assert all(each["right"] and each["traced"] for each in (model, broken, changed))
    assert (model["dynamo"], model["compared"]) == ([COMPARED], ["same"])
    assert (broken["dynamo"], broken["compared"]) == ([COMPARED] * 2, ["same"] * 2)
    assert (changed["dynamo"], changed["compared"]) == ([NOTHING], [])


# What is wrong with packages that a publisher has signed, by function, and what a canary says of it.
WRONG: Mapping[str, tuple[Callable[[Variant], Variant], str]] = {
    "Model.forward": (
        # One on the process: without a guard, what stands at a place would be another.
        lambda variant: replace(variant, guards=tuple(each for each in variant.guards if each.kind != "GRAD_MODE")),
        "guards",
    ),
    "Broken.forward": (
        lambda variant: replace(variant, code=replace(variant.code, stacksize=variant.code.stacksize + 1)),
        "generated code",
    ),
}


def packages_at(address: str, key_file: Path) -> FarmPackages:
    config = ClientConfig(address=address, trust=Trust(package_signing_key=str(key_file)))
    return FarmPackages(config, connection=Connection(config, clock=SystemClock()), clock=SystemClock())


def keys_in(folder: Path) -> list[str]:
    return [each.name for each in folder.glob("caches/entries/package/*")]


@pytest.fixture
def wrong(tmp_path: Path, folder: Path, address: str, published: list[dict[str, Any]]) -> Iterator[str]:
    """The address of a farm whose packages hold and are wrong."""
    assert published
    store = asyncio.run(open_caches(str(tmp_path), size_limit_bytes=50_000_000, lifetime_seconds=3600))
    with serving_in_thread(caches=store) as other:
        given, taken = packages_at(address, folder / "key.pem"), packages_at(other, folder / "key.pem")
        for key in keys_in(folder):
            for found in given.find(key).found:
                if found.lookup.qualified_name in WRONG:
                    change, _ = WRONG[found.lookup.qualified_name]
                    changed = replace(found, variant=change(found.variant))
                    assert taken.publish(changed) == ""
        yield other


def test_what_a_canary_finds_wrong_is_withdrawn_from_the_farm(folder: Path, wrong: str, readers: Readers) -> None:
    found = readers.compare(wrong, "none", "graph break")
    for each, (_, difference) in zip(found, WRONG.values(), strict=True):
        assert each["right"]
        assert each["compared"] == [f"differs in {difference}: the farm has withdrawn it"]
    for key in keys_in(folder):
        assert not packages_at(wrong, folder / "key.pem").find(key).found
