"""Kernels as Inductor writes them for Triton: where their sources lie, and what these say of sizes, types and device
(torch/_inductor/codegen/triton.py: codegen_kernel).
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_META = "triton_meta"
_SIZE = "numel"
_MOST = 2**63
# The largest have some hundred thousand characters; to parse one takes a hundred times its size.
_LONGEST = 4 * 1024 * 1024
# Inductor's folder has one for each beginning of a name (torch/_inductor/codecache.py: get_path).
_FILES = "??/*.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFacts:
    """What a kernel is for.

    Attributes:
        name: Inductor's name for it, which names the operations that it does.
        sizes: numbers of elements by axis, where they do not differ between calls.
        arguments: types by name, as Triton writes them: "*fp32" is a pointer.
        device: properties of the device, such as its kind and its compute capability.
    """

    name: str
    sizes: Mapping[str, int]
    arguments: Mapping[str, str]
    device: Mapping[str, Any]


class KernelSources:
    """Sources in Inductor's folder on this machine, by the names that its autotune caches have for their kernels."""

    def __init__(self) -> None:
        self._seen: set[Path] = set()
        self._paths: dict[str, Path] = {}

    def find(self, name: str) -> str | None:
        """Returns the source of a kernel; None if it does not lie there."""
        try:
            if name not in self._paths:
                self._look()
            return self._paths[name].read_text() if name in self._paths else None
        except (OSError, ValueError):
            return None

    def _look(self) -> None:
        folder = Path(importlib.import_module("torch._inductor.runtime.cache_dir_utils").cache_dir())
        for path in set(folder.glob(_FILES)) - self._seen:
            self._seen.add(path)
            self._paths.update(dict.fromkeys(names_of(path), path))


def names_of(path: Path) -> tuple[str, str]:
    """The names of the kernel in a file: in the cache of kernels, and in that of all kernels of a graph
    (torch/_inductor/runtime/autotune_cache.py).
    """
    cache = importlib.import_module("torch._inductor.runtime.autotune_cache").AutotuneCache
    of_this_machine = cache.create({"autotune_local_cache": True, "autotune_remote_cache": False}, str(path), "")
    return cache._prepare_key(str(path)), Path(of_this_machine.local_cache[1]).name


def describe_kernel(source: str) -> KernelFacts | None:
    """Returns what the source of a kernel says; None if it is none that Inductor has written."""
    if len(source) > _LONGEST:
        return None
    try:
        module = ast.parse(source)
        return next((facts for statement in module.body for facts in _facts_of(statement)), None)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _facts_of(statement: ast.stmt) -> Iterator[KernelFacts]:
    if not isinstance(statement, ast.FunctionDef):
        return
    for decorator in statement.decorator_list:
        if isinstance(decorator, ast.Call):
            given = _keywords(decorator)
            meta, names = given.get(_META), given.get("inductor_meta")
            if isinstance(meta, dict):
                name = names.get("kernel_name") if isinstance(names, dict) else None
                yield KernelFacts(
                    name=str(name or statement.name),
                    sizes=dict(_sizes(statement)),
                    arguments={str(key): str(value) for key, value in _dictionary(meta.get("signature")).items()},
                    device=_dictionary(meta.get("device")),
                )


def _sizes(kernel: ast.FunctionDef) -> Iterator[tuple[str, int]]:
    """From lines such as `xnumel = 32768`."""
    for statement in kernel.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=int() as size)) if name.endswith(
                _SIZE
            ):
                yield name.removesuffix(_SIZE).rstrip("_"), _plain(size)


def _keywords(call: ast.Call) -> dict[str, Any]:
    return {keyword.arg: _value(keyword.value) for keyword in call.keywords if keyword.arg is not None}


def _value(node: ast.expr) -> Any:
    """A literal; of a call its keywords, and the text of anything else."""
    match node:
        case ast.Constant(value=value):
            return _plain(value)
        case ast.Dict(keys=keys, values=values):
            pairs = zip(keys, values, strict=True)
            return {_text(key): _value(value) for key, value in pairs if key is not None}
        case ast.Call():
            return _keywords(node)
        case _:
            return ast.unparse(node)


def _plain(value: Any) -> Any:
    """A constant that JSON and people can be told: no bytes, and no number that has no end.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(value, str | float | int | None) or (isinstance(value, int) and abs(value) >= _MOST):
        raise ValueError("the source of a kernel has a constant that Inductor never writes")
    return value


def _text(node: ast.expr) -> str:
    return str(node.value) if isinstance(node, ast.Constant) else ast.unparse(node)


def _dictionary(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
