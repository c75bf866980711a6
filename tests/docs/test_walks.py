"""The ways that ARCHITECTURE.md walks lead through functions that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STEP = re.compile(
    r"^\d+\. `(service|worker|client|cli|serving|graph|loader|builder|core)/(\w+)\.py: ([\w.]+)`", re.MULTILINE
)
WAYS = [part for part in (ROOT / "ARCHITECTURE.md").read_text().split("\n## ") if part.startswith("The way of ")]
STEPS = [step for way in WAYS for step in STEP.findall(way)]


def functions_of(path: Path) -> set[str]:
    """Names of the functions and methods of a module, these as "Class.method"."""
    module = ast.parse(path.read_text())
    names = {node.name for node in module.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    for owner in (node for node in module.body if isinstance(node, ast.ClassDef)):
        names |= {
            f"{owner.name}.{each.name}"
            for each in owner.body
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
        }
    return names


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.partition("\n")[0])
def test_a_way_has_at_most_twelve_steps_and_each_names_a_function(way: str) -> None:
    numbers = re.findall(r"^(\d+)\. ", way, re.MULTILINE)
    assert numbers == [str(number) for number in range(1, len(numbers) + 1)]
    assert 2 <= len(numbers) <= 12
    assert len(STEP.findall(way)) == len(numbers)


def test_a_graph_a_prewarm_and_a_request_are_walked() -> None:
    assert [way.split()[4] for way in WAYS] == ["graph", "prewarm", "request"]


@pytest.mark.parametrize(("portion", "module", "function"), STEPS)
def test_a_step_is_a_function(portion: str, module: str, function: str) -> None:
    (path,) = ROOT.glob(f"*/compilefarm/{portion}/{module}.py")
    assert function in functions_of(path)
