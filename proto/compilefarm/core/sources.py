"""Digests of Python code: of functions, the modules they lie in, and what these import of the same library.

Two processes in which the digests are equal run the same code, as far as Python's source and plain values say it.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.machinery
import importlib.util
import inspect
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

# What the environment says by version already.
_PINNED = frozenset({"torch", "triton", "functorch", "torchgen", *sys.stdlib_module_names})
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_EXTENSIONS = tuple(importlib.machinery.EXTENSION_SUFFIXES)


class UnknownSource(Exception):
    """Code without a source file; the message names it."""


def digest_of(functions: Iterable[object], *, modules: Iterable[str] = (), follows_imports: bool = True) -> str:
    """Returns the digest of functions and of the modules that they and their helpers lie in.

    Args:
        functions: functions, or what wraps some.
        modules: names of further modules that belong to them.
        follows_imports: whether what these modules import of their library belongs to them, too.

    Raises:
        UnknownSource: the code of one lies in no file.
    """
    walk = _Walk(modules=set(modules))
    for function in functions:
        walk.visit(function)
    paths = _closure(walk.modules) if follows_imports else set(filter(None, map(path_of, walk.modules)))
    files = sorted(map(_digest_of_file, paths))
    return hashlib.sha256("\n".join((*files, *sorted(walk.values))).encode(errors="backslashreplace")).hexdigest()


def modules_that_call(names: Iterable[str], *, mentioning: str, among: Callable[[str], bool]) -> set[str]:
    """Returns the modules of this process in which something is called with one of some texts as its first or second
    argument.

    Args:
        names: the texts; one that ends in "(" stands for all that begin with it.
        mentioning: only modules that hold this text, between quotes or before "::", are looked at.
        among: tells by a module's name whether it is looked at.
    """
    texts = frozenset(names)
    return {
        name
        for name, path in _loaded_files()
        if among(name) and calls_something_with(texts, path, mentioning=mentioning)
    }


def calls_something_with(names: Iterable[str], path: Path, *, mentioning: str) -> bool:
    """Returns whether a file of Python is one of those that `modules_that_call` finds; it need not be loaded."""
    return _mentions(path, mentioning) and not _shortened(_called_with(path)).isdisjoint(names)


def module_of_file(path: Path) -> str | None:
    """Returns the module of this process with that source file; None for others, Python's, torch's and Triton's."""
    return next((name for name, other in _loaded_files() if other == path), None)


def top_of(module: str) -> str:
    """Returns the top-level package or module of a module."""
    return module.partition(".")[0]


def path_of(name: str) -> Path | None:
    """Returns the file of a module, whether it is loaded or not, None if there is none; nothing is imported."""
    module = sys.modules.get(name)
    if module is not None:
        origin = getattr(module, "__file__", None)
    else:
        spec = _find_spec(name)
        origin = spec.origin if spec is not None and spec.has_location else None
    path = Path(origin).resolve() if origin else None
    return path if path is not None and path.is_file() else None


@functools.cache
def installation_places() -> tuple[Path, ...]:
    """The folders in which distributions are installed."""
    return tuple({Path(sysconfig.get_paths()[key]).resolve() for key in ("purelib", "platlib")})


def is_installed(path: Path) -> bool:
    """Whether a file lies where distributions are installed."""
    return any(place in path.parents for place in installation_places())


@dataclass(slots=True, kw_only=True)
class _Walk:
    """Goes from functions to the functions that they refer to.

    Attributes:
        modules: names of the modules that they lie in.
        values: plain values that they refer to, with where.
        seen: addresses of what was visited.
    """

    modules: set[str]
    values: set[str] = field(default_factory=set)
    seen: dict[int, object] = field(default_factory=dict)

    def visit(self, given: object) -> None:
        if id(given) in self.seen:
            return
        # Kept, so that addresses stay theirs.
        self.seen[id(given)] = given
        function = _function_of(given)
        if function is None:
            return
        if function is not given:
            self.visit(function)
        elif top_of(function.__module__ or "") in _PINNED:
            # A wrapper of torch's; the function within is not.
            for cell in function.__closure__ or ():
                self.visit(_content(cell))
        else:
            self._visit_function(function)

    def _visit_function(self, function: FunctionType) -> None:
        _check_file(function)
        self.modules.add(function.__module__)
        wrapped = getattr(function, "__wrapped__", None)
        for name, value in (("wrapped", wrapped), *_referred(function)):
            if _is_plain(value):
                self.values.add(f"{function.__qualname__} {name} {value!r}")
            else:
                self.visit(value)


def _function_of(given: object) -> FunctionType | None:
    """The function that an object is, binds, or wraps; None if it is none."""
    if isinstance(given, FunctionType):
        return given
    if isinstance(given, functools.partial):
        return _function_of(given.func)
    # Methods, and kernels of Triton with and without tuning (triton/runtime/jit.py).
    inner = getattr(given, "__func__", None) or (getattr(given, "fn", None) if not inspect.isclass(given) else None)
    return _function_of(inner) if inner is not None else None


def _referred(function: FunctionType) -> Iterator[tuple[str, object]]:
    """Returns what a function refers to by name: globals, closed-over values, defaults."""
    for name in sorted(_names(function.__code__)):
        if name in function.__globals__ and not name.startswith("__"):
            yield name, function.__globals__[name]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield name, _content(cell)
    yield from _defaults(function)


def _defaults(function: FunctionType) -> Iterator[tuple[str, object]]:
    """Defaults of parameters, with names that are no parameters'."""
    for number, value in enumerate(function.__defaults__ or ()):
        yield f"default {number}", value
    for name, value in sorted((function.__kwdefaults__ or {}).items()):
        yield f"default {name}", value


def _content(cell: Any) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        # Not filled yet.
        return None


def _names(code: CodeType) -> set[str]:
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    return type(value) in _PLAIN


def _check_file(function: FunctionType) -> None:
    # What was made of a text may have no module.
    path = path_of(function.__module__) if function.__module__ else None
    if path is None or Path(function.__code__.co_filename).resolve() != path:
        raise UnknownSource(f"{function.__module__}.{function.__qualname__} was not read from a file of its module")


def _closure(modules: Iterable[str]) -> set[Path]:
    """Files of modules, and of those that they import, of the same library or of none that is installed."""
    tops = {top_of(name) for name in modules}
    found: dict[str, Path] = {}
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        if name in found or (path := path_of(name)) is None:
            continue
        if top_of(name) not in tops and (top_of(name) in _PINNED or is_installed(path)):
            continue
        found[name] = path
        waiting += _imported(name, path)
    return set(found.values())


def _find_spec(name: str) -> importlib.machinery.ModuleSpec | None:
    # importlib.util.find_spec imports the packages that a module lies in.
    parent = name.rpartition(".")[0]
    folders = _folders_of(parent) if parent else None
    return PathFinder.find_spec(name, folders) if folders or not parent else None


def _folders_of(package: str) -> list[str]:
    if package in sys.modules:
        return list(getattr(sys.modules[package], "__path__", ()))
    spec = _find_spec(package)
    return list(spec.submodule_search_locations or ()) if spec is not None else []


def _imported(name: str, path: Path) -> list[str]:
    """Names of modules that a module imports anywhere, and of what may be modules among what it takes from them."""
    if path.name.endswith(_EXTENSIONS):
        return []
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    names = [".".join(name.split(".")[: number + 1]) for number in range(name.count("."))]
    for module, taken in _import_statements(path):
        depth = len(module) - len(module.lstrip("."))
        whole = importlib.util.resolve_name(module, package) if depth and package else module.lstrip(".")
        names += [whole, *(f"{whole}.{each}" for each in taken)]
    return [each for each in names if top_of(each) not in _PINNED]


@functools.cache
def _import_statements(path: Path) -> list[tuple[str, tuple[str, ...]]]:
    found: list[tuple[str, tuple[str, ...]]] = []
    for node in ast.walk(_parsed(path)):
        if isinstance(node, ast.Import):
            found += [(alias.name, ()) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append(("." * node.level + (node.module or ""), tuple(alias.name for alias in node.names)))
    return found


def _loaded_files() -> list[tuple[str, Path]]:
    """Modules of this process that are written in Python, but for Python's, torch's and Triton's."""
    return [
        (name, _resolved(origin))
        for name, module in list(sys.modules.items())
        if top_of(name) not in _PINNED and (origin := getattr(module, "__file__", None)) and origin.endswith(".py")
    ]


@functools.cache
def _resolved(file: str) -> Path:
    return Path(file).resolve()


@functools.cache
def _mentions(path: Path, text: str) -> bool:
    content = _content_of(path)
    forms = (f"{quote}{text}{end}" for quote in "\"'" for end in (quote, "::", ".", "("))
    return any(form.encode() in content for form in forms)


def _shortened(texts: Iterable[str]) -> set[str]:
    """Texts, and what of them lies before a parenthesis, with it."""
    return {form for text in texts for form in (text, text[: text.find("(") + 1] or text)}


@functools.cache
def _called_with(path: Path) -> frozenset[str]:
    calls = (node for node in ast.walk(_parsed(path)) if isinstance(node, ast.Call))
    return frozenset(
        argument.value
        for call in calls
        for argument in call.args[:2]
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    )


def _parsed(path: Path) -> ast.Module:
    try:
        return ast.parse(_content_of(path))
    except (SyntaxError, ValueError) as error:
        raise UnknownSource(f"{path} is no Python: {error}") from error


@functools.cache
def _content_of(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


@functools.cache
def _digest_of_file(path: Path) -> str:
    return hashlib.sha256(_content_of(path)).hexdigest()
