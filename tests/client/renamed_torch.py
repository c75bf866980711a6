"""A program for test_uncompiled_pods.py: pods under a torch that lacks one thing which the farm's code leans on.

Each case is a fork of this process, which has imported torch, and of the farm's code only what a pod has before its
first graph. Prints, as JSON, what became of each case that did not go as it should.
"""

from __future__ import annotations

import ast
import builtins
import gc
import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch._dynamo
import torch._inductor

from compilefarm.client import Farm, compilers, stats
from tests.guard_timing import guards_not_timed

ROOT = Path(__file__).parent.parent.parent
# Nobody listens there.
ADDRESS = "127.0.0.1:1"
FOLDERS = ("proto/compilefarm/torch_internals", "client/compilefarm/loader", "client/compilefarm/client")
# Goes on without the rest, and with whatever attributes of torch's modules it finds.
_LOCAL = "compilefarm.client.local"
# Where private names of torch are taken.
_INTERNALS = "compilefarm.torch_internals."
# Read with getattr.
_BY_TEXT = "torch._functorch.config.force_non_lazy_backward_lowering"
# There is no compile without it.
_NEEDED = "torch._inductor.compile"

Case = tuple[str, str]


class Scaled(torch.nn.Module):
    """With a float that Dynamo takes for an input when sizes are dynamic."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)
        self.eps = 1e-3

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.inner(x) + self.eps).relu() * x.shape[0]


def compile_and_call(backend: Any) -> None:
    """Compares a compiled model with itself."""
    torch.compiler.reset()
    model, x = Scaled(), torch.ones(3, 4)
    torch.testing.assert_close(torch.compile(model, backend=backend, dynamic=True)(x), model(x))


def reached() -> str:
    """What a pod whose torch lacks nothing imports and reads for a graph, as JSON."""
    before = set(sys.modules)
    asked: set[str] = set()
    import_module = importlib.import_module

    def noting(wanted: str, package: str | None = None) -> ModuleType:
        asked.add(wanted)
        return import_module(wanted, package)

    importlib.import_module = noting
    remove("", "")
    attributes = list(private_attributes())
    read = note_reads({path for name in attributes for path in _above(name)})
    went_wrong = run_pod(resort="local")
    imported = [name for name in set(sys.modules) - before if name.startswith(_INTERNALS)]
    found = {
        "modules": sorted(filter(_needs_private_names, imported)),
        "by_name": sorted(filter(_is_private, asked)),
        "attributes": [name for name in attributes if _read_first(name) in read],
        "went_wrong": went_wrong,
    }
    return json.dumps(found)


def note_reads(paths: set[str]) -> set[str]:
    """Returns a set that gets the names that ours read off some modules from now on, with dots.

    A name that is not read may be gone: nothing would differ. One in a class or a table is read where that is.
    """
    read: set[str] = set()
    imported = builtins.__import__

    def note_in_imported_ones() -> None:
        for path in [path for path in paths if isinstance(sys.modules.get(path), ModuleType)]:
            paths.remove(path)
            # Modules of settings refuse names that are no setting.
            ModuleType.__setattr__(sys.modules[path], "__class__", _noting(sys.modules[path], path=path, read=read))

    def guarded(wanted: str, given: Any = None, local: Any = None, names: Any = (), level: int = 0) -> ModuleType:
        module = imported(wanted, given, local, names, level)
        if _is_ours(given):
            note_in_imported_ones()
        return module

    builtins.__import__ = guarded
    note_in_imported_ones()
    return read


def _above(name: str) -> Iterator[str]:
    """What may be a module above a name with dots."""
    while name := name.rpartition(".")[0]:
        yield name


def _noting(module: ModuleType, *, path: str, read: set[str]) -> Any:
    """The class of a module that takes note of what ours read."""

    class Noting(type(module)):  # type: ignore[misc]  # which it is only known here
        def __getattribute__(self, name: str) -> Any:
            if sys._getframe(1).f_globals.get("__name__", "").startswith((_LOCAL, _INTERNALS)):
                read.add(f"{path}.{name}")
            return super().__getattribute__(name)

    return Noting


def _module_of(name: str) -> str:
    """The module that a name with dots is taken from, by what is imported."""
    return next(path for path in _above(name) if isinstance(sys.modules.get(path), ModuleType))


def _read_first(name: str) -> str:
    """What is read off a module to get at a name: the first part of it after the module."""
    module = _module_of(name)
    return f"{module}.{name.removeprefix(f'{module}.').partition('.')[0]}"


def _needs_private_names(module: str) -> bool:
    """Whether a module of ours imports private names of torch at its top: it cannot be imported without them, and
    those that import it cannot, either.
    """
    tree = ast.parse(Path(str(sys.modules[module].__file__)).read_text())
    imported = [alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names]
    taken = [
        f"{node.module}.{alias.name}"
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.level == 0
        for alias in node.names
    ]
    return any(map(_is_private, [*imported, *taken]))


def private_names() -> Iterator[Case]:
    """Private names of torch that ours import when they need them."""
    found: set[Case] = set()
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            found |= set(_private_names(ast.parse(path.read_text())))
    yield from sorted(found)


def _private_names(tree: ast.Module) -> Iterator[Case]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node not in tree.body and _is_private(node.module or ""):
            yield from ((node.module or "", alias.name) for alias in node.names)


def _is_private(name: str) -> bool:
    is_private = any(part.startswith("_") and not part.endswith("__") for part in name.split("."))
    return name.startswith("torch.") and is_private and name not in ("torch._inductor", "torch._dynamo")


def private_attributes() -> Iterator[str]:
    """Private names of torch that are read off modules, with dots: `torch._inductor.config.cpp`."""
    found = {_BY_TEXT}
    local = ROOT / "client" / f"{_LOCAL.replace('.', '/')}.py"
    for path in (local, *(ROOT / "proto" / _INTERNALS.replace(".", "/")).glob("*.py")):
        tree = ast.parse(path.read_text())
        modules = {"torch": "torch"} | {
            alias.asname or alias.name: f"{node.module}.{alias.name}"
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        found |= {name for node in ast.walk(tree) if (name := _dotted(node, modules)) and _is_private(name)}
    yield from sorted(found)


def _dotted(node: ast.AST, modules: dict[str, str]) -> str:
    """An attribute of a module with dots; empty for all else."""
    if isinstance(node, ast.Name):
        return modules.get(node.id, "")
    if isinstance(node, ast.Attribute) and (of := _dotted(node.value, modules)):
        return f"{of}.{node.attr}"
    return ""


class Facade:
    """A module, or what is in it, without one name.

    Args:
        target: what it stands for.
        path: its name, with dots.
        missing: the name that is not there, with dots.
    """

    def __init__(self, target: Any, *, path: str, missing: str) -> None:
        self.__dict__.update(_target=target, _path=path, _missing=missing)

    def __getattr__(self, name: str) -> Any:
        path = f"{self._path}.{name}"
        if path == self._missing:
            raise AttributeError(f"{self._path} has no attribute {name!r}")
        value = getattr(self._target, name)
        return Facade(value, path=path, missing=self._missing) if self._missing.startswith(f"{path}.") else value


def hide(missing: str) -> None:
    """Has those who read it find a name nowhere, as an attribute either; torch itself finds it."""
    imported = builtins.__import__

    def guarded(wanted: str, given: Any = None, local: Any = None, names: Any = (), level: int = 0) -> Any:
        module = imported(wanted, given, local, names, level)
        path = module.__name__
        is_read = (given or {}).get("__name__", "").startswith((_LOCAL, _INTERNALS))
        is_hidden = is_read and missing.startswith(f"{path}.")
        return Facade(module, path=path, missing=missing) if is_hidden else module

    builtins.__import__ = guarded


def remove(module: str, name: str) -> None:
    """Has ours find neither the module nor, if one is given, the name in it."""
    imported, import_module = builtins.__import__, importlib.import_module

    def guarded(wanted: str, given: Any = None, local: Any = None, names: Any = (), level: int = 0) -> ModuleType:
        if wanted == module and _is_ours(given) and (not name or name in (names or ())):
            raise ImportError(f"cannot import name {name!r} from {wanted!r}")
        return imported(wanted, given, local, names, level)

    def guarded_module(wanted: str, package: str | None = None) -> ModuleType:
        if wanted == module and not name:
            raise ModuleNotFoundError(f"No module named {wanted!r}")
        return import_module(wanted, package)

    builtins.__import__ = guarded
    importlib.import_module = guarded_module
    if module.startswith("compilefarm."):
        sys.modules[module] = None  # type: ignore[assignment]  # as Python marks what must not be imported


def _is_ours(given: dict[str, Any] | None) -> bool:
    return (given or {}).get("__name__", "").startswith("compilefarm.")


def compile_at_once(graph_module: Any, example_inputs: Any, options: Any = None) -> Any:
    """Stands in for Inductor, which takes seconds."""
    return graph_module.forward


def in_fork(run: Callable[[], str]) -> Callable[[], str]:
    """Runs something in a fork; the result waits for it and gives what it returned, or the traceback."""
    reader, writer = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            os.write(writer, run().encode())
        except BaseException:  # noqa: BLE001 - told to the parent process
            os.write(writer, traceback.format_exc()[-3000:].encode())
        finally:
            os._exit(0)
    os.close(writer)

    def wait() -> str:
        with os.fdopen(reader, "rb") as file:
            said = file.read().decode()
        _, status = os.waitpid(process, 0)
        return said or (f"it ended with {status}" if status else "")

    return wait


def run_case(case: Case) -> str:
    """A pod that lacks something; returns what went wrong, in a word."""
    remove(*case)
    return run_pod(resort="local")


def run_case_of_attribute(name: str) -> str:
    """The same of a pod that finds an attribute nowhere."""
    hide(name)
    return run_pod(resort="eager" if name == _NEEDED else "local")


def run_pod(*, resort: str) -> str:
    """What went wrong with a pod; empty if it took the resort."""
    farm = Farm(ADDRESS)
    compile_and_call(farm.backend)
    found = [(record.outcome, record.resort) for record in stats() if record.outcome is not None]
    return "" if {taken for _, taken in found} == {resort} else f"it went another way: {found}"


def main() -> None:
    with guards_not_timed():
        try_all()


def try_all() -> None:
    """Tries all cases, and prints what became of them."""
    torch.set_num_threads(1)
    torch._inductor.compile = compile_at_once
    compilers._try_all = lambda *_, **__: ""  # type: ignore[assignment]
    compile_and_call("eager")
    # Searches for garbage would have each fork copy what it shares with this process.
    gc.freeze()
    imported = json.loads(in_fork(reached)())
    modules = [*((name, "") for name in (*imported["modules"], *imported["by_name"])), *private_names()]
    cases = {".".join(case).rstrip("."): partial(run_case, case) for case in modules}
    attributes = {f"{name} as an attribute": partial(run_case_of_attribute, name) for name in imported["attributes"]}
    cases |= attributes
    failed = {"nothing": imported["went_wrong"]} if imported["went_wrong"] else {}
    names = list(cases)
    for start in range(0, len(names), 4):
        waits = [(name, in_fork(cases[name])) for name in names[start : start + 4]]
        failed |= {name: said for name, wait in waits if (said := wait())}
    print(json.dumps({"cases": len(cases), "attributes": list(attributes), "failed": failed}))


if __name__ == "__main__":
    main()
