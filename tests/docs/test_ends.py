"""Which tests run with one release of torch alone or without any, and what they do without."""

from __future__ import annotations

import ast
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEV = runpy.run_path(str(ROOT / "dev.py"))
WITHOUT_TORCH: tuple[str, ...] = DEV["WITHOUT_TORCH"]
FILES = sorted(path for folder in WITHOUT_TORCH for path in (ROOT / "tests" / folder).rglob("*.py"))
_PORTIONS = ("torch_internals", "graph", "loader", "builder")
TORCH = ("torch", "triton", *(f"compilefarm.{portion}" for portion in _PORTIONS))
_IMPORT = "import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]; print(*sys.modules)"


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def imported_by(path: Path) -> Iterator[str]:
    """Names that a module imports, in functions, too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def of_torch(names: Iterator[str] | list[str]) -> list[str]:
    return [name for name in names if f"{name}.".startswith(tuple(f"{prefix}." for prefix in TORCH))]


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_a_test_of_one_end_names_no_torch(path: Path) -> None:
    # A table of words, which the reference prints, what compresses bytes, and what reads those of sources.
    known = ("compilefarm.graph.bypass", "compilefarm.builder.packing", "compilefarm.loader.sources")
    assert [name for name in of_torch(imported_by(path)) if not name.startswith(known)] == []


def test_tests_of_one_end_import_no_torch() -> None:
    # Others are programs.
    tests = [module_of(path) for path in FILES if path.name.startswith("test_")]
    command = [sys.executable, "-c", _IMPORT, *tests]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=300)
    assert [name for name in done.stdout.split() if name.split(".")[0] in ("torch", "triton")] == []


def test_each_test_runs_at_an_end_or_without_torch_and_most_at_both() -> None:
    whole, parts = [run for run in DEV["RUNS"] if not run.places], [run for run in DEV["RUNS"] if run.places]
    assert [run.end for run in whole] == [*DEV["ENDS"]]
    # What a process does alone, those of the ends leave out, and it says what it does.
    apart = [f"tests/{place}" for run in parts for place in run.places]
    assert [each for run in parts for each in run.arguments() if each.startswith("tests/")] == apart
    ignored = [{each.removeprefix("--ignore=") for each in run.arguments() if "--ignore=" in each} for run in whole]
    assert set.intersection(*ignored) == {*apart}
    for path in set.union(*ignored):
        assert (ROOT / path).exists()
