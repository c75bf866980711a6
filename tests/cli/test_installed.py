"""What is installed with a farm or a pod, and what is there in a checkout alone."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

import compilefarm
from tests.cli.commands import run_command

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("command", ["bench", "demo"])
def test_where_there_are_no_benchmarks_the_command_says_what_to_do(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if f"{name}.".startswith("compilefarm.benchmarks.")]:
        monkeypatch.delitem(sys.modules, name)
    installed = [path for path in compilefarm.__path__ if Path(path).parent.name != "benchmarks"]
    monkeypatch.setattr(compilefarm, "__path__", installed)
    with pytest.raises(SystemExit):
        run_command(command)
    *_, said = capsys.readouterr().err.splitlines()
    assert said.endswith("it is no part of what is installed; in a checkout of Compilefarm: python3 dev.py setup")


def test_a_wheel_has_neither_benchmarks_nor_tests() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    portions = {path.name for folder in wheel["only-include"] for path in (ROOT / folder).iterdir() if path.is_dir()}
    assert portions - {"__pycache__"} == {
        *("v1", "core", "graph", "torch_internals", "client", "loader", "packages", "reuse", "cli"),
        *("service", "store", "serving", "worker", "builder", "cluster"),
    }
