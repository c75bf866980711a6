"""The ways that ARCHITECTURE.md walks lead through functions that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STEP = re.compile(r"^\d+\. `(service|worker|client|graph|artifact|core)/(\w+)\.py: ([\w.]+)`", re.MULTILINE)
STEPS = STEP.findall((ROOT / "ARCHITECTURE.md").read_text())


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


def test_there_are_steps() -> None:
    assert len(STEPS) >= 12


@pytest.mark.parametrize(("portion", "module", "function"), STEPS)
def test_a_step_is_a_function(portion: str, module: str, function: str) -> None:
    (path,) = ROOT.glob(f"*/compilefarm/{portion}/{module}.py")
    assert function in functions_of(path)
