"""Descriptions of values: short texts, equal in two processes exactly where a trace would have found the same.

Functions are described by their code, defaults and closures, classes by all that their own and inherited attributes
do, modules by what is set on instances. What a description cannot tell is refused, so that nothing rests on a guess.
"""

from __future__ import annotations

import _abc  # type: ignore[import-not-found]
import abc
import enum
import functools
import hashlib
import inspect
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from compilefarm.reuse.code_objects import codes_within, digest_of_code, text_of
from compilefarm.reuse.refusals import Unsayable
from compilefarm.torch_internals.dynamo_frames import ADDRESS_OF_WRAPPED
from compilefarm.torch_internals.modules import hooks_in
from compilefarm.torch_internals.operators import OpOverload, OpOverloadPacket

_CONSTANTS = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis))
_TORCH_CONSTANTS = (torch.dtype, torch.device, torch.layout, torch.memory_format)
_C_CALLABLES = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.MethodWrapperType,
)
# Of a class: what Python and abc keep there, which says nothing of what instances do.
_BOOKKEEPING = frozenset(
    {
        "__dict__", "__weakref__", "__doc__", "__annotations__", "__module__", "__abstractmethods__", "_abc_impl",
        "__parameters__", "__orig_bases__", "__static_attributes__", "__firstlineno__", "__annotate_func__",
        "__annotations_cache__", "__match_args__", "__dataclass_fields__", "__dataclass_params__", "__type_params__",
    }
)  # fmt: skip


# Their attributes are described with themselves; torch marks tensors while it traces.
_WITH_OTHER_NAMESPACE = (type, types.ModuleType, types.FunctionType, torch.Tensor)


# Who is the same object cannot matter, or is told by other guards.
_TOLD_BY_VALUE = (
    *_WITH_OTHER_NAMESPACE,
    tuple,
    frozenset,
    types.MethodType,
    enum.Enum,
    *_C_CALLABLES,
    *_TORCH_CONSTANTS,
)


def name_of(thing: Any) -> str:
    """The module and qualified name of a class or function."""
    return f"{thing.__module__}.{thing.__qualname__}"


def shortened(text: str) -> str:
    """A description as it is recorded: equal for equal ones."""
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:24]


class Describer:
    """Describes values. It remembers what it has described: one is for one moment."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, str]] = {}
        self._under_way: set[int] = set()
        self._codes: set[int] = set()
        self._ways = self._known_ways()

    def has_described(self, code: types.CodeType) -> bool:
        """Whether a description tells this code, as that of a function, a method, or a function within one."""
        return id(code) in self._codes

    def constant(self, value: Any) -> str:
        """Describes a value that is compared by what it is equal to.

        Raises:
            Unsayable: it is not made of constants.
        """
        kind = type(value)
        if kind in _CONSTANTS:
            return text_of(value)
        if kind in _TORCH_CONSTANTS:
            return f"torch:{value!r}"
        if isinstance(value, enum.Enum):
            return f"enum:{self.of_class(kind)}:{value.name}"
        if kind in (tuple, list, torch.Size):
            return f"{kind.__name__}({','.join(self.constant(each) for each in value)})"
        if kind in (set, frozenset):
            # In the order in which it is gone through, which is that of this process.
            return f"{kind.__name__}({','.join(self.constant(each) for each in value)})"
        if kind is slice:
            return f"slice({','.join(self.constant(each) for each in (value.start, value.stop, value.step))})"
        if kind is range:
            return f"range({value.start},{value.stop},{value.step})"
        if kind is type({}.keys()):
            return f"dict_keys({','.join(self.constant(each) for each in value)})"
        return self.identity(value)

    def identity(self, value: Any) -> str:
        """Describes a value that is compared by its identity.

        Raises:
            Unsayable: it has nothing by which another process could find its like.
        """
        known = self._known.get(id(value))
        if known is not None:
            return known[1]
        if id(value) in self._under_way:
            return "itself"
        self._under_way.add(id(value))
        try:
            text = self._identity(value)
        finally:
            self._under_way.discard(id(value))
        self._known[id(value)] = value, text
        return text

    def of_class(self, kind: type) -> str:
        """Describes a class by all that its instances inherit."""
        return self.identity(kind)

    def of_place(self, value: Any) -> str:
        """Describes the kind of object that stands somewhere: its class, and what is set on it.

        Of what is set, the names are told, since a name that was not there was looked up elsewhere; and what can be
        called, since it takes the place of a method.
        """
        text = self.of_class(type(value))
        if isinstance(value, (set, frozenset)) and len(value) > 1:
            # Who goes through it has the members in an order that no guard tells.
            text = f"{text}:{self._all(list(value))}"
        own = getattr(value, "__dict__", None)
        if isinstance(value, _WITH_OTHER_NAMESPACE) or not isinstance(own, dict):
            return text
        return f"{text}{self._overrides(own)}"

    def of_places(self, values: Sequence[Any]) -> Iterator[str]:
        """Describes what stands at several places, and at which of them stands the same object.

        Dynamo guards that two places have the same object, and not that they have two.
        """
        first: dict[int, int] = {}
        for number, value in enumerate(values):
            text = self.of_place(value)
            is_told = isinstance(value, _TOLD_BY_VALUE) or type(value) in _CONSTANTS
            yield text if is_told else f"{text}@{first.setdefault(id(value), number)}"

    def _identity(self, value: Any) -> str:
        kind = type(value)
        if kind in _CONSTANTS or kind in _TORCH_CONSTANTS or isinstance(value, enum.Enum):
            return self.constant(value)
        if value is NotImplemented:
            return "NotImplemented"
        for matches, describe in self._ways:
            if isinstance(value, matches):
                return describe(value)
        raise Unsayable(f"an object of type {name_of(kind)}")

    def _known_ways(self) -> tuple[tuple[Any, Callable[[Any], str]], ...]:
        return (
            (types.ModuleType, _module),
            (type, self._class),
            (types.FunctionType, self._function),
            (types.CodeType, digest_of_code),
            (types.MethodType, lambda each: f"method:{self.identity(each.__func__)}@{self.of_place(each.__self__)}"),
            (_C_CALLABLES, lambda each: _c_callable(each)),
            ((staticmethod, classmethod), lambda each: f"{type(each).__name__}:{self.identity(each.__func__)}"),
            (property, lambda each: f"property:{self._all([each.fget, each.fset, each.fdel])}"),
            (functools.cached_property, lambda each: f"cached_property:{self.identity(each.func)}"),
            (functools.partial, self._partial),
            (functools._lru_cache_wrapper, lambda each: f"cached:{self.identity(each.__wrapped__)}"),
            ((OpOverload, OpOverloadPacket), lambda each: f"operator:{each}"),
            (torch.jit.ScriptFunction, _no_script),
        )

    def _class(self, kind: type) -> str:
        digests = [self._members(each) for each in kind.__mro__ if each is not object]
        if isinstance(kind, abc.ABCMeta):
            # Classes that were registered are instances of it, too.
            registered = (reference() for reference in _abc._get_dump(kind)[0])
            digests += sorted(name_of(each) for each in registered if each is not None)
        return f"class:{name_of(kind)}:{type(kind).__qualname__}:{shortened(chr(10).join(digests))}"

    def _members(self, kind: type) -> str:
        place = -id(kind) - 1
        known = self._known.get(place)
        if known is None:
            known = self._known[place] = kind, self._members_of(kind)
        return known[1]

    def _members_of(self, kind: type) -> str:
        if not kind.__flags__ & (1 << 9):  # Py_TPFLAGS_HEAPTYPE: what C defines cannot be patched
            return name_of(kind)
        members = sorted((name, value) for name, value in vars(kind).items() if name not in _BOOKKEEPING)
        text = "\n".join(f"{name}={self._member(value)}" for name, value in members)
        return f"{name_of(kind)}:{shortened(text)}"

    def _member(self, value: Any) -> str:
        if isinstance(value, type):
            # No name leads to a class that a function makes.
            return self.of_class(value) if "<locals>" in value.__qualname__ else f"class:{name_of(value)}"
        if isinstance(value, inspect.Signature):
            return f"signature:{value}"
        if isinstance(value, (list, tuple, set, frozenset)):
            return f"{type(value).__name__}({','.join(self._member(each) for each in value)})"
        if isinstance(value, Mapping) and len(value) < 1000:
            return f"mapping({','.join(f'{self._member(k)}:{self._member(v)}' for k, v in value.items())})"
        try:
            return self.identity(value)
        except Unsayable:
            # Dynamo guards what it reads of an object; what kind of object it is, is told here.
            return f"object:{name_of(type(value))}"

    def _function(self, function: types.FunctionType) -> str:
        self._codes |= {id(code) for code in codes_within(function.__code__)}
        parts = [name_of(function), digest_of_code(function.__code__)]
        parts += [self._member(each) for each in function.__defaults__ or ()]
        parts += [f"{name}={self._member(each)}" for name, each in sorted((function.__kwdefaults__ or {}).items())]
        parts += [_cell(cell, self._member) for cell in function.__closure__ or ()]
        parts += [
            f"{name}={self._member(each)}"
            for name, each in sorted(vars(function).items())
            if name != ADDRESS_OF_WRAPPED
        ]
        return f"function:{name_of(function)}:{shortened(chr(10).join(parts))}"

    def _partial(self, partial: functools.partial[Any]) -> str:
        keywords = [f"{name}={self._member(value)}" for name, value in sorted(partial.keywords.items())]
        return f"partial:{self.identity(partial.func)}:{self._all(list(partial.args))}:{','.join(keywords)}"

    def _all(self, values: list[Any]) -> str:
        return ",".join(self._member(each) for each in values)

    def _overrides(self, own: Mapping[str, Any]) -> str:
        said = [f"{name}={self._member(value)}" for name, value in sorted(own.items()) if _is_override(value)]
        hooks = [f"{name}={self._member(hooks)}" for name, hooks in hooks_in(own).items()]
        return f"+{shortened(';'.join([*map(str, own), *said, *hooks]))}"


def _is_override(value: Any) -> bool:
    return isinstance(value, (types.FunctionType, types.MethodType, functools.partial, types.BuiltinFunctionType, type))


def _cell(cell: types.CellType, describe: Callable[[Any], str]) -> str:
    try:
        return describe(cell.cell_contents)
    except ValueError:
        return "empty"


def _module(module: types.ModuleType) -> str:
    if sys.modules.get(module.__name__) is not module:
        raise Unsayable(f"the module {module.__name__}, which cannot be imported by its name")
    return f"module:{module.__name__}"


def _c_callable(value: Any) -> str:
    owner = getattr(value, "__objclass__", None) or getattr(value, "__self__", None)
    place = owner.__name__ if isinstance(owner, types.ModuleType) else type(owner).__qualname__
    if isinstance(owner, type):
        place = name_of(owner)
    return f"builtin:{place}:{getattr(value, '__qualname__', value.__name__)}"


def _no_script(value: Any) -> str:
    raise Unsayable(f"a function that torch.jit compiled ({getattr(value, 'name', '')})")
