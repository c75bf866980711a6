"""Descriptions of classes by their functions, properties and constants, and by the functions that these name."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType, ModuleType

from compilefarm.packages.descriptions import Describer, content_of, lies_in_torch, name_of

# Attributes of classes that say nothing about what they do, or that Python makes when somebody asks.
_SILENT = frozenset(
    {
        "__abstractmethods__", "__annotate__", "__annotate_func__", "__annotations__", "__annotations_cache__",
        "__dict__", "__doc__", "__firstlineno__", "__module__", "__orig_bases__", "__parameters__", "__slotnames__",
        "__static_attributes__", "__weakref__", "_abc_impl",
    }
)  # fmt: skip


class ClassDescriber:
    """Describes classes, each once.

    Args:
        describer: of values.
    """

    def __init__(self, describer: Describer) -> None:
        self._describer = describer
        self._described: dict[type, str] = {}

    def describe(self, kind: type) -> str:
        """What a class says itself, without its bases."""
        if kind not in self._described:
            attributes = sorted((name, value) for name, value in vars(kind).items() if name not in _SILENT)
            self._described[kind] = repr(
                (name_of(kind), [(name, self._attribute(value)) for name, value in attributes])
            )
        return self._described[kind]

    def _attribute(self, value: object) -> str:
        described = self._describer.describe_loosely(value)
        named = [
            (name, self._describer.describe_loosely(function))
            for each in _functions_of(value)
            # What torch's own functions name is torch's, or is found out when a package is verified.
            if not lies_in_torch(each.__code__)
            for name, function in values_named_by(each.__code__, each.__globals__)
            if isinstance(function, FunctionType)
        ]
        return f"{described} {named}" if named else described


def values_named_by(code: CodeType, scope: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """The globals that code names, and attributes of modules among them that it names too.

    Args:
        code: the code.
        scope: its globals.
    """
    names = sorted(set(names_in(code)))
    for name in names:
        if name not in scope:
            continue
        value = scope[name]
        yield name, value
        if isinstance(value, ModuleType):
            content = vars(value)
            yield from ((f"{value.__name__}.{inner}", content[inner]) for inner in names if inner in content)


def names_in(code: CodeType) -> Iterator[str]:
    """The global names and attributes that code uses, that of functions within it included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_in(constant)


def _functions_of(value: object) -> Iterator[FunctionType]:
    """The functions that an attribute of a class is made of, and those that they wrap."""
    match value:
        case FunctionType():
            yield value
            contents = map(content_of, value.__closure__ or ())
            yield from (each for each in contents if isinstance(each, FunctionType))
        case property():
            yield from (each for each in (value.fget, value.fset, value.fdel) if isinstance(each, FunctionType))
        case staticmethod() | classmethod():
            yield from _functions_of(value.__func__)
        case functools.cached_property():
            yield from _functions_of(value.func)
