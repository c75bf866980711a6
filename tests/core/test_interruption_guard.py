"""Code that a pod runs while it waits takes no exception of the program's own signal handlers for something else."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# What a pod runs on the main thread, to which Python gives signals.
FOLDERS = (
    *(f"client/compilefarm/{name}" for name in ("client", "loader", "packages", "reuse")),
    *(f"proto/compilefarm/{name}" for name in ("core", "graph", "torch_internals")),
)
BROAD = ("Exception", "BaseException")
ASKED = ("raise_interruption", "find_interruption")
# Handlers that ask nobody, by module and function, and why they need not.
EXEMPT = {
    "client/takeover.py: run": "a thread of its own, to which no signal comes; it is raised where the answer is taken",
    "client/takeover.py: take_over": "a thread of its own, to which no signal comes",
    "torch_internals/remote_caches.py: override": "`report`, which may name what is ours, asks",
    "graph/libraries.py: _import": "workers alone import libraries",
    "graph/decode.py: _graph_module": "workers alone decode",
    "graph/decode.py: _called": "workers alone decode",
    "graph/triton_modules.py: _build": "workers alone decode",
}


def broad_handlers(tree: ast.AST, *, function: str = "") -> Iterator[tuple[str, ast.ExceptHandler]]:
    """Handlers of all exceptions, each with the function that it stands in."""
    for node in ast.iter_child_nodes(tree):
        inner = node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else function
        if isinstance(node, ast.ExceptHandler) and is_broad(node.type):
            yield inner, node
        yield from broad_handlers(node, function=inner)


def is_broad(caught: ast.expr | None) -> bool:
    if isinstance(caught, ast.Tuple):
        return any(map(is_broad, caught.elts))
    return caught is None or (isinstance(caught, ast.Name) and caught.id in BROAD)


def passes_on(handler: ast.ExceptHandler) -> bool:
    """Whether it asks for interruptions, or raises in the end whatever it caught."""
    last = handler.body[-1]
    asks = any(isinstance(node, ast.Name) and node.id in ASKED for node in ast.walk(handler))
    return asks or (isinstance(last, ast.Raise) and last.exc is None)


def suppressions(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        is_suppress = isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "suppress"
        if is_suppress and any(map(is_broad, node.args)):
            yield node


def forgotten(source: str, *, module: str) -> list[str]:
    """What takes all exceptions for something else in a module, as "module: function"."""
    tree = ast.parse(source)
    found = [f"{module}: {function}" for function, handler in broad_handlers(tree) if not passes_on(handler)]
    return found + [f"{module}: suppress in line {call.lineno}" for call in suppressions(tree)]


def modules() -> dict[str, str]:
    paths = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    return {f"{path.parent.name}/{path.name}": path.read_text() for path in paths}


def test_whoever_catches_everything_asks_whether_it_is_an_interruption() -> None:
    found = {each for module, source in modules().items() for each in forgotten(source, module=module)}
    assert found - EXEMPT.keys() == set(), "call core.interruptions.raise_interruption first"
    assert EXEMPT.keys() - found == set(), "they are exempt, and need not be"


@pytest.mark.parametrize(
    ("body", "is_found"),
    [
        ("except Exception as error:\n        raise Other from error", True),
        ("except (ValueError, BaseException):\n        pass", True),
        ("except:\n        pass", True),
        ("except Exception:\n        if held:\n            raise\n        note()", True),
        ("except Exception as error:\n        raise_interruption(error)\n        note()", False),
        ("except BaseException:\n        close()\n        raise", False),
        ("except ValueError:\n        pass", False),
    ],
)
def test_what_is_found(body: str, is_found: bool) -> None:
    source = f"def work():\n    try:\n        do()\n    {body}\n"
    assert forgotten(source, module="a.py") == (["a.py: work"] if is_found else [])


def test_what_suppresses_everything_is_found() -> None:
    assert forgotten("with contextlib.suppress(Exception):\n    do()\n", module="a.py") == ["a.py: suppress in line 1"]
