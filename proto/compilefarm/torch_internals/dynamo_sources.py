"""Dynamo's sources, which say how a guarded value is reached: taken apart, put together again, followed."""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Iterable, Iterator, Mapping
from types import CodeType, ModuleType
from typing import Any

import torch._dynamo.source as _sources
import torch._guards as _guards
from torch._dynamo.guards import _get_closure_vars  # torch/_dynamo/guards.py
from torch._dynamo.source import AttrSource as _Attribute  # torch/_dynamo/source.py
from torch._guards import ChainedSource, Source  # torch/_guards.py

__all__ = ["TAKES_MEMBER", "Scope", "Source", "build_source", "fields_of", "global_of", "kind_of", "modules_named_by"]

# By which name generated code takes a member of a set, by a number that is right in one process.
TAKES_MEMBER = "set_getitem"

# Fields that are enumerations of torch: their members travel by name.
_ENUMERATIONS: dict[str, type[enum.Enum]] = {"prop": _sources.TensorProperty}


def kind_of(source: Source) -> str:
    """The name of a source's class."""
    return type(source).__name__


def fields_of(source: Source) -> dict[str, Any]:
    """What a source's class is called with to make an equal one: sources, and values."""
    return {field.name: _name_of(getattr(source, field.name)) for field in dataclasses.fields(source) if field.init}


def build_source(kind: str, fields: Mapping[str, Any]) -> Source:
    """Makes a source again.

    Raises:
        ValueError: torch has no such source, or it has other fields.
    """
    found = _class_of(kind)
    if found is None:
        raise ValueError(f"torch has no source {kind}")
    # Few have any.
    if not _ENUMERATIONS.keys().isdisjoint(fields):
        fields = {
            name: _ENUMERATIONS[name][value] if name in _ENUMERATIONS else value for name, value in fields.items()
        }
    try:
        if kind != "ImportSource":
            return found(**fields)
        # Until 2.12 such a source adds its guard to the trace that is under way; it is among the guards that are built.
        with _guards.tracing(_guards.TracingContext(None)):
            return found(**fields)
    except TypeError as error:
        raise ValueError(f"torch has another {kind}: {error}") from error


def modules_named_by(sources: Iterable[Source], scope: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The names of globals that Dynamo has made for modules and that sources begin with, each with its module's name.

    Not all of them are among those of a trace: where Dynamo begins anew, names of an attempt before may be used again.
    """
    for source in sources:
        if isinstance(source, _sources.GlobalSource):
            module = scope.get(source.global_name)
            # torch/_dynamo/symbolic_convert.py: import_source
            if isinstance(module, ModuleType) and source.global_name == _alias_of(module.__name__):
                yield source.global_name, module.__name__


def global_of(source: Source) -> str | None:
    """The name of the global that a source begins with; None if it begins with something else."""
    while isinstance(source, ChainedSource):
        source = source.base
    return source.global_name if isinstance(source, _sources.GlobalSource) else None


def _alias_of(module: str) -> str:
    return f"__import_{module.replace('.', '_dot_')}"


class Scope:
    """The variables of a frame, in which sources are followed.

    Args:
        local_variables: of the frame.
        global_variables: of its function.
    """

    def __init__(self, local_variables: Mapping[str, Any], global_variables: Mapping[str, Any]) -> None:
        self._scope: dict[str, Any] = {"L": local_variables, "G": global_variables}
        self._names: dict[str, Any] = dict(_get_closure_vars())
        # By address, as hashing a source takes a while, with what keeps it alive; and as torch looks for them.
        self._followed: dict[int, tuple[Source, Any]] = {}
        self._values: dict[Any, Any] = {}

    def follow(self, source: Source) -> Any:
        """Returns the value that a source leads to. Raises whatever following it raises."""
        found = self._followed.get(id(source))
        if found is None:
            found = self._followed[id(source)] = source, self._step(source)
        return found[1]

    def _step(self, source: Source) -> Any:
        # As get_value of both classes (torch/_guards.py), which compile the same few texts for every source.
        kind: Any = type(source)
        if kind.get_value is ChainedSource.get_value:
            chained: Any = source
            known = self._followed.get(id(chained.base))
            base = self.follow(chained.base) if known is None else known[1]
            if kind is _Attribute and chained.member.isidentifier():
                # Most sources are such, of which the text says the same.
                return getattr(base, chained.member)
            self._names[_BASE] = base
            text = chained._name_template.format(_BASE)
            return eval(_expression(text), self._scope, self._names)  # noqa: S307 - as torch does
        if isinstance(source, ChainedSource):
            self._values[source.base] = self.follow(source.base)
        values: Any = self._values
        return source.get_value(self._scope, self._names, values)


# What the value of a source's base is called while the source is evaluated.
_BASE = "___base"


@functools.lru_cache(maxsize=10_000)
def _expression(text: str) -> CodeType:
    return compile(text, "<source>", "eval")


@functools.cache
def _class_of(kind: str) -> type[Source] | None:
    found = [getattr(module, kind, None) for module in (_sources, _guards)]
    return next((each for each in found if isinstance(each, type) and issubclass(each, Source)), None)


def _name_of(value: Any) -> Any:
    return value.name if isinstance(value, enum.Enum) and type(value) in _ENUMERATIONS.values() else value
