"""Which private names of torch, functorch, Inductor and Triton a module of Python uses, found in its source.

Private are: names with a part that begins with an underscore (`torch._ops.OpOverload` as much as
`torch.library._impls`), what lies in `torch.fx.experimental`, and of Triton its compiler, runtime, drivers and knobs.
Private attributes of objects count, unless the same module defines them, for then they are ours, or an import says that
they are of Python or another library. So does text that names something private, or by which something private is
looked up.

Operators are none: `torch.ops.aten._foreach_add_` and the text `_foreach_add_` say what graphs hold.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

_ROOTS = ("torch", "triton", "functorch")
_OF_TRITON = frozenset({"backends", "compiler", "knobs", "runtime"})
_NAME = re.compile(r"(torch|triton|functorch)(\.\w+)+\.?")
# Called with an object and the name of an attribute or an entry, or with names alone.
_LOOKUPS = frozenset(
    {"attrgetter", "delattr", "get", "getattr", "getattr_static", "hasattr", "methodcaller", "pop", "setattr"}
)
# Documented attributes of named tuples.
_OF_PYTHON = frozenset({"_asdict", "_fields", "_make", "_replace"})


@dataclass(frozen=True, slots=True, order=True)
class Use:
    """A private name in a module.

    Attributes:
        name: with its module where the source says it ("torch._ops.OpOverload"), else as an attribute ("._schema").
        line: where it is.
    """

    name: str
    line: int


def private_uses(source: str) -> list[Use]:
    """The private names in the source of a module, sorted."""
    return sorted(set(_Module(ast.parse(source)).uses()))


def is_private(name: str) -> bool:
    """Whether a name with its module, or a module, is private to torch or Triton."""
    root, *parts = name.split(".")
    if root not in _ROOTS or parts[:1] == ["ops"]:
        return False
    if root == "triton" and not _OF_TRITON.isdisjoint(parts[:1]):
        return True
    return parts[:2] == ["fx", "experimental"] or any(map(_has_underscore, parts))


def _has_underscore(part: str) -> bool:
    return part.startswith("_") and part.strip("_") != "" and not part.endswith("__")


@dataclass(frozen=True)
class _Module:
    tree: ast.Module

    def uses(self) -> Iterator[Use]:
        inner = {id(node.value) for node in ast.walk(self.tree) if isinstance(node, ast.Attribute)}
        for node in ast.walk(self.tree):
            for name in self._names(node, is_whole=id(node) not in inner):
                yield Use(name, node.lineno)  # type: ignore[attr-defined]  # what has names has a line

    def _names(self, node: ast.AST, *, is_whole: bool) -> Iterator[str]:
        match node:
            case ast.Import(names=aliases):
                yield from (alias.name for alias in aliases if is_private(alias.name))
            case ast.ImportFrom(module=str(module), names=aliases):
                yield from (name for alias in aliases if is_private(name := f"{module}.{alias.name}"))
            case ast.Attribute() if is_whole:
                yield from self._chain(node)
            case ast.Constant(value=str(text)) if _NAME.fullmatch(text) and is_private(text):
                yield text
            case ast.Call() | ast.Subscript() | ast.Compare():
                yield from self._of_object(part for text in _looked_up(node) for part in text.split("."))

    def _chain(self, node: ast.Attribute) -> Iterator[str]:
        """Of `a.b._c.d`, which is one expression: the name with its module, or each private part of an object."""
        parts: list[str] = []
        value: ast.expr = node
        while isinstance(value, ast.Attribute):
            parts.insert(0, value.attr)
            value = value.value
        home = self._imports.get(value.id, "") if isinstance(value, ast.Name) else ""
        if home.partition(".")[0] in _ROOTS:
            name = ".".join((home, *parts))
            yield from [name] if is_private(name) else []
        elif not home or home.startswith("compilefarm"):
            yield from self._of_object(parts)

    def _of_object(self, parts: Iterator[str] | list[str]) -> Iterator[str]:
        found = (part for part in parts if _has_underscore(part))
        yield from (f".{part}" for part in found if part not in self._defined | _OF_PYTHON)

    @cached_property
    def _imports(self) -> dict[str, str]:
        """What the names stand for that are imported, wherever in the module."""
        found = {}
        for node in ast.walk(self.tree):
            match node:
                case ast.Import(names=aliases):
                    for alias in aliases:
                        name = alias.name if alias.asname else alias.name.partition(".")[0]
                        found[alias.asname or name] = name
                case ast.ImportFrom(module=str(module), names=aliases):
                    found |= {alias.asname or alias.name: f"{module}.{alias.name}" for alias in aliases}
        return found

    @cached_property
    def _defined(self) -> frozenset[str]:
        """Private names that the module gives its own classes and their objects."""
        return frozenset(name for node in ast.walk(self.tree) for name in _definitions(node) if _has_underscore(name))


def _definitions(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Name(id=name, ctx=ast.Store()):
            yield name
        case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
            yield name


def _looked_up(node: ast.Call | ast.Subscript | ast.Compare) -> Iterator[str]:
    """Texts by which something is looked up, and names of keyword arguments."""
    given: list[ast.expr] = []
    match node:
        case ast.Call(func=function):
            yield from (keyword.arg for keyword in node.keywords if keyword.arg is not None)
            name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            given = node.args if name in _LOOKUPS else []
        case ast.Subscript(slice=key):
            given = [key]
        case ast.Compare(left=left, comparators=[*others]):
            given = [left, *others]
    yield from (each.value for each in given if isinstance(each, ast.Constant) and isinstance(each.value, str))
