"""Two pods ask one farm for the same graphs. What differs between them would give the second one wrong results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compilefarm.core.variables import MATCHED_NAMES
from tests.farm.serving import ServedFarm, serve
from tests.lean import LEAN

from .libraries import write_library

pytestmark = pytest.mark.compiles
OPERATORS = ("implicit", "launched", "gradient")
STATES = ("casting", "contraction")
MODULES = [f"wrong_hits_library.operators.{name}" for name in OPERATORS]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_library(tmp_path_factory.mktemp("library"), factor=2.0)


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory, library: Path) -> Iterator[ServedFarm]:
    # A check finds what is wrong for the pod that asked first; here it is right for that one.
    folder = tmp_path_factory.mktemp("farm")
    with serve(folder, ["--verify", "off"], modules=MODULES, module_folder=library) as served:
        yield served


@pytest.fixture(scope="module")
def first(farm: ServedFarm, library: Path) -> dict[str, Any]:
    """What the pod that asks first gets."""
    return ask(farm, library, *OPERATORS, *STATES)


def ask(farm: ServedFarm, library: Path, *names: str, **variables: str) -> dict[str, Any]:
    path = os.pathsep.join((str(library), os.environ.get("PYTHONPATH", "")))
    without = {name: value for name, value in os.environ.items() if name not in MATCHED_NAMES}
    # What the farm has nothing for need not be compiled to be seen.
    without["COMPILEFARM_ON_FAILURE"] = "eager"
    done = subprocess.run(
        [sys.executable, LEAN, str(Path(__file__).parent / "pod.py"), farm.address, *names],
        env={**without, "PYTHONPATH": path, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return seen


def test_the_first_pod_is_served(first: dict[str, Any]) -> None:
    for name, seen in first.items():
        assert seen["outcomes"] == ["compiled"], (name, seen["messages"])
        assert seen["farm"] == seen["eager"]


@pytest.fixture(scope="module")
def second(first: dict[str, Any], farm: ServedFarm, library: Path) -> dict[str, Any]:
    """What a pod gets that asks later, in another state, and whose library is another."""
    other = write_library(library.parent / "other library", factor=3.0)
    seen = ask(farm, other, *OPERATORS, *STATES, AUTOCAST="float16", LEFT_TO_RIGHT="1")
    assert seen.keys() == first.keys()
    return seen


@pytest.mark.parametrize("name", STATES)
def test_a_pod_in_another_state(first: dict[str, Any], second: dict[str, Any], name: str) -> None:
    # The worker takes its state on.
    seen = second[name]
    assert seen["outcomes"] == ["compiled"], seen["messages"]
    assert seen["farm"] == seen["eager"] != first[name]["farm"]


@pytest.mark.parametrize("name", OPERATORS)
def test_a_pod_with_another_library(first: dict[str, Any], second: dict[str, Any], name: str) -> None:
    seen = second[name]
    assert seen["outcomes"] == ["fallback"]
    assert f"operator wrong_hits_library::{name} is defined by another version" in seen["messages"][0]
    assert seen["farm"] == seen["eager"] != first[name]["farm"]


def test_a_pod_with_other_instructions(first: dict[str, Any], farm: ServedFarm, library: Path) -> None:
    assert first["casting"]["outcomes"] == ["compiled"]
    second = ask(farm, library, "casting", ATEN_CPU_CAPABILITY="default")
    assert second["casting"]["outcomes"] == ["fallback"]
    assert "ATEN_CPU_CAPABILITY=default is wanted" in second["casting"]["messages"][0]
