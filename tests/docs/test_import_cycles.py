"""Imports go one way: no modules of the tree import each other in a circle, in functions or for types only either."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("proto", "service", "worker", "client")


def modules_of(folder: Path) -> Iterator[tuple[str, str]]:
    """Names and sources of the modules below a folder."""
    for path in folder.rglob("*.py"):
        yield ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__"), path.read_text()


def imports_of(source: str, modules: Mapping[str, str]) -> Iterator[str]:
    """Those of the modules that a source imports, wherever it does."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from (name if name in modules else node.module for name in names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def find_cycle(modules: Mapping[str, str]) -> list[str]:
    """Modules that import each other in a circle, from one back to itself; none if there is no circle."""
    graph = {
        name: {each for each in imports_of(source, modules) if each in modules and each != name}
        for name, source in modules.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


@pytest.mark.parametrize(
    "late",
    [
        "import house.cellar",
        "from house import cellar",
        "def find():\n    from house.cellar import wine",
        "if TYPE_CHECKING:\n    from house.cellar import Wine",
    ],
)
def test_a_circle_is_found_however_it_is_imported(late: str) -> None:
    modules = {"house": "", "house.roof": late, "house.cellar": "from house.roof import tile"}
    assert set(find_cycle(modules)) == {"house.roof", "house.cellar"}
    assert find_cycle({**modules, "house.cellar": ""}) == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    modules = {name: source for folder in FOLDERS for name, source in modules_of(ROOT / folder)}
    assert len(modules) > 300
    assert find_cycle(modules) == []
