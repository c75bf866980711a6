"""The second process traces nothing, checks as many guards as Dynamo made, and is right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.lean import LEAN
from tests.reuse.programs import PROGRAMS


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, Any]]]:
    """What became of each program, in two processes after each other."""
    folder = tmp_path_factory.mktemp("variants")
    return [_run(folder, seed="1"), _run(folder, seed="2")]


def _run(folder: Path, *, seed: str) -> dict[str, dict[str, Any]]:
    command = [sys.executable, LEAN, "-m", "tests.reuse.programs", str(folder)]
    # No two pods have the same variables.
    environment = os.environ | {"PYTHONHASHSEED": seed, "OMP_NUM_THREADS": "1", f"POD_{seed}": seed}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return {result["program"]: result for result in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_second_process_traces_nothing(name: str, runs: list[dict[str, dict[str, Any]]]) -> None:
    first, second = runs[0][name], runs[1][name]
    assert second["traced"] == []
    assert first["unpublished"] == second["unpublished"] == []
    # A program that another one has published for is reused at once.
    assert sorted(second["guards"]) == sorted(first["guards"] + first["published"])
    assert all(first["right"])
    assert all(second["right"])
