"""Dynamo's sources, which say how a guarded value is reached: taken apart, put together again, followed."""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import CodeType, ModuleType
from typing import Any

import torch._dynamo.source as _sources
import torch._guards as _guards
from torch._dynamo.guards import _get_closure_vars  # torch/_dynamo/guards.py
from torch._dynamo.source import AttrSource as _Attribute  # torch/_dynamo/source.py
from torch._guards import ChainedSource, Source  # torch/_guards.py

__all__ = [
    "TAKES_MEMBER",
    "Scope",
    "Source",
    "fields_of",
    "global_of",
    "kind_of",
    "maker_of",
    "modules_named_by",
]

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


@functools.cache
def maker_of(kind: str) -> Callable[..., Source]:
    """What makes sources of a kind again, of their fields by name. It raises TypeError if this torch has others.

    There are as many sources as guards, and few kinds of them: what is asked of a kind is asked once.

    Raises:
        ValueError: torch has no such source.
    """
    held = [getattr(module, kind, None) for module in (_sources, _guards)]
    found = next((each for each in held if isinstance(each, type) and issubclass(each, Source)), None)
    if found is None:
        raise ValueError(f"torch has no source {kind}")
    source_class: type[Source] = found
    names = {field.name for field in dataclasses.fields(source_class)}

    def make_with_members(**fields: Any) -> Source:
        known = {name: _ENUMERATIONS[name][value] for name, value in fields.items() if name in _ENUMERATIONS}
        return source_class(**(fields | known))

    def make_import(**fields: Any) -> Source:
        # Until 2.12 such a source adds its guard to the trace that is under way; it is among the guards that are built.
        with _guards.tracing(_guards.TracingContext(None)):
            return source_class(**fields)

    if kind == "ImportSource":
        return make_import
    return source_class if names.isdisjoint(_ENUMERATIONS) else make_with_members


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
        followed = self._followed
        found = followed.get(id(source))
        if found is not None:
            return found[1]
        if type(source) in _ATTRIBUTES and (member := source.member).isidentifier():
            # Most sources are such, of which the text says the same.
            chained = source.base
            known = followed.get(id(chained))
            value = getattr(self.follow(chained) if known is None else known[1], member)
        else:
            value = self._step(source)
        followed[id(source)] = source, value
        return value

    def _step(self, source: Source) -> Any:
        # As get_value of both classes (torch/_guards.py), which compile the same few texts for every source.
        kind: Any = type(source)
        if kind.get_value is ChainedSource.get_value:
            chained: Any = source
            base = self.follow(chained.base)
            template = chained._name_template
            if template == _ITSELF:
                return base
            self._names[_BASE] = base
            text = template.format(_BASE)
            return eval(_expression(text), self._scope, self._names)  # noqa: S307 - as torch does
        if isinstance(source, ChainedSource):
            self._values[source.base] = self.follow(source.base)
        values: Any = self._values
        return source.get_value(self._scope, self._names, values)


# Sources whose text reads an attribute of their base, and the text of those that lead to where their base leads.
_ATTRIBUTES: frozenset[Any] = frozenset(
    each
    for each in vars(_sources).values()
    if isinstance(each, type)
    and issubclass(each, _Attribute)
    and getattr(each, "get_value", None) is ChainedSource.get_value
    and getattr(each, "_name_template", None) is _Attribute._name_template
)
_ITSELF = "{0}"
# What the value of a source's base is called while the source is evaluated.
_BASE = "___base"


@functools.lru_cache(maxsize=10_000)
def _expression(text: str) -> CodeType:
    return compile(text, "<source>", "eval")


def _name_of(value: Any) -> Any:
    return value.name if isinstance(value, enum.Enum) and type(value) in _ENUMERATIONS.values() else value
