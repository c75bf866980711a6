"""Descriptions of values: short texts, equal in two processes exactly where a trace would have found the same.

Functions are described by their code, defaults and closures, classes by all that their own and inherited attributes
do, modules by what is set on instances. What a description cannot tell is refused, so that nothing rests on a guess.
"""

from __future__ import annotations

import _abc  # type: ignore[import-not-found]
import abc
import builtins
import collections
import collections.abc
import contextvars
import dataclasses
import enum
import functools
import hashlib
import importlib.machinery
import inspect
import operator
import os
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.distributions.constraints import Constraint

from compilefarm.reuse.called_functions import NAMES_OF_SLOTS, described_with_all_named
from compilefarm.reuse.called_members import BOOKKEEPING, called_members
from compilefarm.reuse.code_objects import codes_within, digest_of_code, text_of
from compilefarm.reuse.memory_places import MemoryPlaces
from compilefarm.reuse.names_in_code import (
    C_CALLABLES,
    Modules,
    answering_function,
    chains_of,
    is_copy_of_release,
    is_found_by_name,
    is_of_a_release,
    static_attribute,
    value_at,
)
from compilefarm.reuse.numpy_descriptions import describe_of_numpy
from compilefarm.reuse.operator_descriptions import describe_operator
from compilefarm.reuse.refusals import Unsayable
from compilefarm.torch_internals.data_classes import kind_of_field
from compilefarm.torch_internals.dynamo_frames import ADDRESS_OF_WRAPPED, NOT_TRACED_FORM
from compilefarm.torch_internals.modules import hooks_in
from compilefarm.torch_internals.operators import OpOverload, OpOverloadPacket
from compilefarm.torch_internals.pytrees import OrderedSet, TreeSpec

_CONSTANTS = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis))
_TORCH_CONSTANTS = (torch.dtype, torch.device, torch.layout, torch.memory_format)
# What takes the place of a method where it is set on an object, and most of what else is set on parts of models.
_OVERRIDES = (types.FunctionType, types.MethodType, functools.partial, types.BuiltinFunctionType, type)
_NEVER_CALLED = frozenset({*_CONSTANTS, dict, list, tuple, set, collections.OrderedDict, torch.nn.Parameter})
# What is a member of a class as it is, and of nothing else.
_NAMED = frozenset({*_CONSTANTS, *C_CALLABLES, types.FunctionType, property, staticmethod, classmethod})
# By which place of a tuple it finds, it says nowhere but where it is pickled; so do those of operator.
_FIELD_OF_NAMED_TUPLES = type(vars(inspect.ArgInfo)["args"])
_FINDING = (_FIELD_OF_NAMED_TUPLES, operator.itemgetter, operator.attrgetter)
_NUMBERS_AND_TEXTS = (int, float, complex, str, bytes)
_SEQUENCES = (list, tuple, collections.deque)
MISSING = "missing"
_COMPILED = tuple(importlib.machinery.EXTENSION_SUFFIXES)
# Py_TPFLAGS_HEAPTYPE
_HEAP_TYPE = 1 << 9
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_ALIKE = "a set of objects that are described alike"
# Of a module: what the import keeps there.
_OF_MODULES = frozenset(
    {"__builtins__", "__cached__", "__doc__", "__file__", "__loader__", "__name__", "__package__", "__spec__"}
)

# Of a member of an enumeration: what Python keeps there.
_OF_MEMBERS = frozenset({"_inverted_", "_value_", "_name_", "__objclass__", "_sort_order_"})
# Where a member has its value, and an enumeration its members by their values.
_VALUE, _BY_VALUE = "_value_", "_value2member_map_"

# Classes whose own descriptions tell of which abstract classes they are. torch imports networkx where it partitions
# graphs, which processes that reuse never do, and networkx registers one of its classes.
_TELL_THEMSELVES = frozenset({"networkx.utils.configs.Config"})

# Their attributes are described with themselves; torch marks tensors while it traces, and operators keep what was once
# looked up.
_WITH_OTHER_NAMESPACE = (type, types.ModuleType, types.FunctionType, torch.Tensor, OpOverload, OpOverloadPacket)


# What Dynamo makes constants of, also where it guards nothing (torch/_dynamo/variables/builder.py: SourcelessBuilder),
# by what it consists of.
_LOOKED_INTO: Mapping[type, Callable[[Any], Iterable[Any]]] = {
    slice: lambda each: (each.start, each.stop, each.step),
    range: lambda each: (each.start, each.stop, each.step),
    bytearray: lambda each: (bytes(each),),
    collections.deque: lambda each: (*each, each.maxlen),
    re.Match: lambda each: (each.re, each.string, each.pos, each.endpos, each.regs),
    # What kind of field it is, Dynamo takes for fixed where none of the standard library's is left.
    dataclasses.Field: lambda each: (kind_of_field(each), each.name, each.init, each.default),
    OrderedSet: list,
    TreeSpec: lambda each: (str(each),),
}
_PLAIN_MAPPINGS = (dict, collections.OrderedDict, collections.defaultdict, types.MappingProxyType)

# Who is the same object cannot matter, or is told by itself.
_TOLD_BY_VALUE = (
    *_WITH_OTHER_NAMESPACE,
    type(None),
    bool,
    enum.Enum,
    *C_CALLABLES,
    *_TORCH_CONSTANTS,
)


def name_of(thing: Any) -> str:
    """The module and qualified name of a class or function."""
    return f"{thing.__module__}.{thing.__qualname__}"


@functools.lru_cache(maxsize=20_000)
def shortened(text: str) -> str:
    """A description as it is recorded: equal for equal ones."""
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:24]


class Describer:
    """Describes values. It remembers what it has described: one is for one moment.

    Args:
        orders: whether sets are told in the order that they have in this process, which is nobody else's.
        beginnings: whether it is told where in its memory each tensor begins.
        modules: those of this moment; looked for if they are not given.

    Attributes:
        modules: those of this moment.
        memory: where tensors lie.
    """

    def __init__(self, *, orders: bool = False, beginnings: bool = False, modules: Modules | None = None) -> None:
        self.modules = modules or Modules()
        self.memory = MemoryPlaces(beginnings=beginnings)
        self._orders = orders
        self._known: dict[int, tuple[Any, str]] = {}
        self._places: dict[int, tuple[Any, str]] = {}
        self._annotations: dict[int, tuple[Any, str]] = {}
        self._under_way: set[int] = set()
        self._codes: set[int] = set()
        self._outer_codes: list[types.CodeType] = []
        # Where os.environ keeps its variables. A program may have put something else there.
        self._read_by_name = {id(each) for each in getattr(os.environ, "__dict__", {}).values()} | {id(sys.modules)}
        self._alike: dict[str, int] = {}
        self._told_by_value: dict[int, bool] = {}
        self._numbers: dict[int, tuple[object, int]] = {}
        self._apart: Describer | None = None

    def has_described(self, code: types.CodeType) -> bool:
        """Whether a description tells this code, as that of a function, a method, or a function within one."""
        # Only who records asks.
        while self._outer_codes:
            self._codes |= {id(each) for each in codes_within(self._outer_codes.pop())}
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
            # Flags that are combined may have no name. What is set on a member, releases before 2.12 take for fixed.
            own = [
                f"{name}={self._member(each)}" for name, each in sorted(vars(value).items()) if name not in _OF_MEMBERS
            ]
            return f"enum:{self.of_class(kind)}:{value.name}:{self._member(value.value)}:{','.join(own)}"
        if kind in (tuple, list, torch.Size):
            return f"{kind.__name__}({','.join(self.constant(each) for each in value)})"
        if kind in (set, frozenset):
            return f"{kind.__name__}({','.join(self._of_set(value, self.constant))})"
        if kind is slice:
            return f"slice({','.join(self.constant(each) for each in (value.start, value.stop, value.step))})"
        if kind is range:
            return f"range({value.start},{value.stop},{value.step})"
        if isinstance(value, _NUMBERS_AND_TEXTS):
            # Of a class of its own: what that does, and what it is equal to without it.
            if any(vars(base).get("__slots__") for base in kind.__mro__):
                raise Unsayable(f"a number or text of the class {name_of(kind)}, which has slots")
            plain = next(base for base in _NUMBERS_AND_TEXTS if isinstance(value, base))
            held = sorted(getattr(value, "__dict__", {}).items())
            own = [f"{name}={self._of_calls.of_content_alone(each)}" for name, each in held]
            return f"{self.of_place(value)}:{plain.__repr__(value)}:{','.join(own)}"
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
        if isinstance(value, (type, types.FunctionType)) and not is_at_its_place(value):
            text = self._told_apart(text)
        self._known[id(value)] = value, text
        return text

    def _told_apart(self, text: str) -> str:
        """A description with the number of the object among those that are described alike: `is` and isinstance tell
        them apart."""
        number = self._alike[text] = self._alike.get(text, -1) + 1
        return f"{text}#{number}"

    def of_class(self, kind: type) -> str:
        """Describes a class by all that its instances inherit."""
        return self.identity(kind)

    def of_place(self, value: Any) -> str:
        """Describes the kind of object that stands somewhere: its class, and what is set on it.

        Of what is set, the names are told, since a name that was not there was looked up elsewhere; and what can be
        called, since it takes the place of a method.
        """
        known = self._places.get(id(value))
        if known is None:
            known = self._places[id(value)] = value, self._of_place(value)
        return known[1]

    def _of_place(self, value: Any) -> str:
        text = self.of_class(type(value))
        if isinstance(value, (set, frozenset)) and len(value) > 1:
            text = f"{text}:{','.join(self._of_set(value, self._member))}"
        # Variables and modules that are read are compared by their names. Who goes through all variables publishes
        # nothing, and who goes through all modules has a guard on their names.
        if isinstance(value, (dict, types.MappingProxyType)) and id(value) not in self._read_by_name:
            text = f"{text}:{self.of_order(_keys_of(value))}"
        own = getattr(value, "__dict__", None)
        if isinstance(value, _WITH_OTHER_NAMESPACE) or not isinstance(own, dict):
            return text
        return f"{text}{self._overrides(own) if own else _NOTHING_SET}"

    def _of_set(self, members: Iterable[Any], describe: Callable[[Any], str]) -> list[str]:
        """Descriptions of what a set holds, in an order that says nothing unless that of this process counts."""
        described = self._described(members, describe)
        return described if self._orders else sorted(described)

    def ranks_of_members(self, members: Any) -> list[int]:
        """Which one each member of a set is, in an order that is the same in each process, unless that of this process
        counts.

        Raises:
            Unsayable: members are described alike, or it is no plain set.
        """
        if type(members) not in (set, frozenset):
            raise Unsayable(f"members of a {type(members).__qualname__}, which has an order of its own")
        texts = self._described(members, self._member)
        if self._orders:
            return list(range(len(texts)))
        ranks = {text: rank for rank, text in enumerate(sorted(texts))}
        if len(ranks) < len(texts):
            raise Unsayable(_ALIKE)
        return [ranks[text] for text in texts]

    def _described(self, members: Iterable[Any], describe: Callable[[Any], str]) -> list[str]:
        members = list(members)
        # How a circle is described depends on where it is entered: not at the member that this process has first.
        for kind in sorted({type(each) for each in members}, key=name_of):
            self.of_class(kind)
        before = dict(self._alike)
        described = [describe(each) for each in members]
        # They were numbered in an order that another process does not have.
        if not self._orders and any(last - before.get(text, -1) > 1 for text, last in self._alike.items()):
            raise Unsayable(_ALIKE)
        return described

    def of_order(self, keys: list[Any]) -> str:
        """Describes keys in their order, which decides what popitem finds and no guard tells."""
        if not keys:
            return "[]"
        if all(type(each) is int for each in keys):
            # Hooks are numbered, by how many the process has had: only which comes before which is the same elsewhere.
            ranks = {key: rank for rank, key in enumerate(sorted(keys))}
            return str([ranks[each] for each in keys])
        return shortened(self._all(keys))

    def of_places(self, values: Iterable[tuple[Any, bool]]) -> Iterator[str]:
        """Describes what stands at several places, each with whether a guard is on it, and at which of them stands the
        same object.

        Dynamo guards that two places have the same object, and not that they have two.
        """
        for value, is_guarded in values:
            # Before the number: there are few kinds of objects, and many objects.
            text = shortened(self.of_place(value))
            if not is_guarded and (content := self.of_content(value)):
                text = f"{text}:{content}"
            if self._is_told_by_value(type(value)):
                yield text
            else:
                # A method is made whenever somebody asks for it, and equal to others of the same object.
                one = value.__self__ if isinstance(value, types.MethodType) else value
                yield f"{text}@{self.number_of(one)}"

    def of_content(self, value: Any) -> str:
        """Describes what stands at a place that no guard is on: what it is equal to, or else how much it holds. Parts
        of it that were looked at have places of their own."""
        if value is sys.modules:
            return self.of_order(list(value))
        try:
            return shortened(self.constant(value))
        except Unsayable:
            return str(len(value)) if isinstance(value, _SEQUENCES) else ""

    def _is_told_by_value(self, kind: type) -> bool:
        # By address: a metaclass may say which classes are equal. What is described is kept, and so is its class.
        known = self._told_by_value.get(id(kind))
        if known is None:
            known = self._told_by_value[id(kind)] = issubclass(kind, _TOLD_BY_VALUE)
        return known

    def number_of(self, value: object) -> int:
        """The number of an object among those that were asked for: at how many places it stands, it has the same."""
        return self._numbers.setdefault(id(value), (value, len(self._numbers)))[1]

    def of_chain(self, scope: Mapping[str, Any], chain: str, *, module: types.ModuleType | None = None) -> str:
        """Describes what code finds that names a global and attributes of modules and classes on it.

        Args:
            scope: the globals.
            chain: the names, with dots between.
            module: whose globals they are, if it may have been asked for the first name.
        """
        first, *rest = chain.split(".")
        value = scope.get(first, getattr(builtins, first, MISSING))
        path = [self._named(value), *(self._answers(module) if first not in scope else ())]
        for name in rest:
            if not isinstance(value, (types.ModuleType, type)):
                break
            owner, value = value, static_attribute(value, name, MISSING)
            path += [self._named(value), *(self._answers(owner) if value is MISSING else ())]
        return hashlib.sha256("\n".join(path).encode("utf-8", "backslashreplace")).hexdigest()[:32]

    def _answers(self, owner: types.ModuleType | type | None) -> Iterator[str]:
        """Describes what a module has for names that it does not hold. What a class has is told with the class."""
        if isinstance(owner, types.ModuleType) and (answers := answering_function(owner)) is not None:
            yield self._named(answers)

    def _named(self, value: Any) -> str:
        try:
            return self.identity(value)
        except Unsayable:
            if isinstance(value, type):
                # It calls what rests on more than can be told, and no guard is on what it makes.
                raise
            # Dynamo guards what it reads of an object; what kind of object it is, is told here.
            return f"object:{name_of(type(value))}"

    def _identity(self, value: Any) -> str:
        kind = type(value)
        if kind in _CONSTANTS or kind in _TORCH_CONSTANTS or isinstance(value, enum.Enum):
            return self.constant(value)
        if value is NotImplemented:
            return "NotImplemented"
        if (known := self._ways_of_kinds().get(kind)) is not None:
            return known(self, value)
        for matches, describe in self._ways():
            if isinstance(value, matches):
                return describe(self, value)
        if kind.__module__.startswith("numpy"):
            return describe_of_numpy(value)
        if kind.__module__ == "typing" or isinstance(value, (types.GenericAlias, types.UnionType)):
            return self._form_of_types(value)
        raise Unsayable(f"an object of type {name_of(kind)}")

    def _form_of_types(self, form: Any) -> str:
        """Describes what is no class, and stands for some: typing.Optional, list[int], int | str."""
        origin = typing.get_origin(form)
        if origin is not None:
            return f"form:{type(form).__qualname__}:{self.identity(origin)}:{self.constant(typing.get_args(form))}"
        name = str(form).removeprefix("typing.")
        if value_at("typing", name) is not form:
            raise Unsayable(f"{form!r}, which is not at its place")
        return f"typing:{name}"

    def _variable_of_types(self, variable: typing.TypeVar) -> str:
        told = [variable.__bound__, variable.__constraints__, variable.__covariant__, variable.__contravariant__]
        return self._told_apart(f"variable of types:{variable.__module__}.{variable.__name__}:{self._all(told)}")

    # Ways are functions of any describer: one that held its own methods would be part of a circle, and would keep what
    # it has described, a model and its inputs, until somebody looks for garbage.

    @staticmethod
    @functools.cache
    def _ways_of_kinds() -> Mapping[type, Callable[[Describer, Any], str]]:
        """Of most values, without a look at what else they could be."""
        return {
            types.FunctionType: Describer._function,
            type: Describer._class,
            **dict.fromkeys(C_CALLABLES, Describer._c_callable),
            **dict.fromkeys(_FINDING, Describer._finding),
        }

    @staticmethod
    @functools.cache
    def _ways() -> tuple[tuple[Any, Callable[[Describer, Any], str]], ...]:
        return (
            (types.ModuleType, Describer._module),
            (type, Describer._class),
            (types.FunctionType, Describer._function),
            (types.CodeType, lambda _, each: digest_of_code(each)),
            (types.MethodType, Describer._method),
            (C_CALLABLES, Describer._c_callable),
            ((staticmethod, classmethod), lambda own, each: f"{type(each).__name__}:{own.identity(each.__func__)}"),
            (property, lambda own, each: f"property:{own._all([each.fget, each.fset, each.fdel])}"),
            (functools.cached_property, lambda own, each: f"cached_property:{own.identity(each.func)}"),
            (functools.partial, Describer._partial),
            (functools._lru_cache_wrapper, lambda own, each: f"cached:{own.identity(each.__wrapped__)}"),
            ((OpOverload, OpOverloadPacket), Describer._operator),
            (re.Pattern, lambda _, each: _pattern(each)),
            (re.Match, Describer._looked_into),
            ((torch.finfo, torch.iinfo), lambda _, each: f"{type(each).__name__}:{each.dtype}"),
            (typing.TypeVar, Describer._variable_of_types),
            # What it has in this context stands at a place of its own.
            (contextvars.ContextVar, lambda own, each: own._told_apart(f"context variable:{each.name}")),
            (torch.jit.ScriptFunction, lambda _, each: _no_script(each)),
        )

    def _module(self, module: types.ModuleType) -> str:
        if is_found_by_name(module):
            return f"module:{module.__name__}"
        if not is_copy_of_release(module):
            raise Unsayable(f"the module {module.__name__}, which cannot be imported by its name")
        # Nobody asks by name what a copy holds, so that all of it is told.
        held = sorted((name, value) for name, value in vars(module).items() if name not in _OF_MODULES)
        return (
            f"copy:{module.__name__}:{shortened(chr(10).join(f'{name}={self._member(each)}' for name, each in held))}"
        )

    def _class(self, kind: type) -> str:
        digests = [self._members(each) for each in kind.__mro__ if each is not object]
        digests.append(self._called_of(kind))
        digests += [self._own_metaclass(each) for each in inspect.getmro(type(kind)) if not is_of_a_release(each)]
        # What keeps a class from having instances can be set later.
        digests += sorted(vars(kind).get("__abstractmethods__", ())) if kind is not type else ()
        if isinstance(kind, abc.ABCMeta):
            # Classes that were registered are instances of it, too.
            digests += sorted({name_of(each) for each in registered_with(kind)} - _TELL_THEMSELVES)
        if any(name_of(each) in _TELL_THEMSELVES for each in kind.__mro__):
            digests += [name for name in collections.abc.__all__ if issubclass(kind, getattr(collections.abc, name))]
        digests += [each.__name__ for each in kind.__mro__]
        return f"class:{name_of(kind)}:{type(kind).__qualname__}:{shortened(chr(10).join(digests))}"

    def _own_metaclass(self, kind: type) -> str:
        # What a class has of its metaclass, Dynamo takes for fixed.
        values = [value for name, value in sorted(vars(kind).items()) if name not in BOOKKEEPING]
        return f"{self._members(kind)}:{self._of_calls.of_content_alone(values)}"

    def _called_of(self, kind: type) -> str:
        """Describes what objects of a class have that Dynamo calls and does not trace, with what that reads of it."""
        called = called_members(kind)
        return self._of_calls.of_content_alone(called) if called else ""

    def of_content_alone(self, value: Any) -> str:
        """Describes what no guard is on, whatever of it is read, with all that functions in it name.

        Raises:
            Unsayable: it is, or holds, an object that is not compared by what it is equal to; or a function rests on
                more than what it names.
        """
        return shortened("\n".join(described_with_all_named(value, self.identity, self.constant, {})))

    @property
    def _of_calls(self) -> Describer:
        """Describes what is called while tracing, and goes through sets as it likes."""
        if self._orders:
            return self
        if self._apart is None:
            self._apart = Describer(orders=True, modules=self.modules)
        return self._apart

    def _members(self, kind: type) -> str:
        place = -id(kind) - 1
        known = self._known.get(place)
        if known is None:
            known = self._known[place] = kind, self._members_of(kind)
        return known[1]

    def _members_of(self, kind: type) -> str:
        if not kind.__flags__ & _HEAP_TYPE:  # what C defines cannot be patched
            return name_of(kind)
        named = dict(vars(kind))
        if issubclass(kind, enum.Flag):
            named[_BY_VALUE] = {key: each for key, each in named[_BY_VALUE].items() if not _is_combined(key, each)}
        members = sorted((name, value) for name, value in named.items() if name not in BOOKKEEPING)
        text = "\n".join([*(f"{name}={self._member(value)}" for name, value in members), *self._said_of_itself(kind)])
        return f"{name_of(kind)}:{shortened(text)}"

    def _member(self, value: Any) -> str:
        if type(value) in _NAMED:
            return self._named(value)
        if isinstance(value, type):
            # No name leads to a class that a function makes, also where it is called as if one did.
            is_named = "<locals>" not in value.__qualname__ and is_at_its_place(value)
            return f"class:{name_of(value)}" if is_named else self.of_class(value)
        if isinstance(value, (inspect.Signature, inspect.Parameter)):
            return f"{type(value).__name__}:{value}"
        if isinstance(value, (set, frozenset)):
            return f"{type(value).__name__}({','.join(self._of_set(value, self._member))})"
        if isinstance(value, (list, tuple)):
            return f"{type(value).__name__}({','.join(self._member(each) for each in value)})"
        # Of other values, collections.abc looks through all mappings that there are. One of its own class may make what
        # it is asked for.
        if hasattr(type(value), "items") and isinstance(value, Mapping) and (_is_plain(value) or len(value) < 1000):
            return f"mapping({','.join(f'{self._member(k)}:{self._member(v)}' for k, v in value.items())})"
        if isinstance(value, Constraint):
            return f"{self.of_class(type(value))}({self._member(vars(value))})"
        if type(value) in _LOOKED_INTO:
            return self._looked_into(value)
        return self._named(value)

    def _looked_into(self, value: Any) -> str:
        return f"{type(value).__name__}({','.join(map(self._member, _LOOKED_INTO[type(value)](value)))})"

    def _function(self, function: types.FunctionType) -> str:
        self._outer_codes.append(function.__code__)
        name = name_of(function)
        parts = [name, digest_of_code(function.__code__), *self._said_of_itself(function)]
        # Most have none of these.
        if defaults := function.__defaults__:
            parts += [self._member(each) for each in defaults]
        if named := function.__kwdefaults__:
            parts += [f"{name}={self._member(each)}" for name, each in sorted(named.items())]
        if cells := function.__closure__:
            parts += [self._cell(cell) for cell in cells]
        if own := function.__dict__:
            passed_over = {
                ADDRESS_OF_WRAPPED,
                *((NOT_TRACED_FORM,) if is_of_a_release(own.get(NOT_TRACED_FORM)) else ()),
            }
            parts += [f"{name}={self._member(own[name])}" for name in sorted(own.keys() - passed_over)]
        if not self.modules.has_own_globals(function.__code__, function.__globals__):
            # What it names is in no module that its code leads to.
            chains = sorted(set(chains_of(function.__code__)))
            parts += [f"{chain}={self.of_chain(function.__globals__, chain)}" for chain in chains]
        return f"function:{name}:{shortened(chr(10).join(parts))}"

    def _said_of_itself(self, thing: Any) -> list[str]:
        """What a class or function says of itself, which releases before 2.12 read without a guard."""
        is_class = isinstance(thing, type)
        said = [thing.__name__]
        if own := vars(thing).get("__annotations__") if is_class else thing.__annotations__:
            # Most are text.
            said += [
                f"{name}:{value if isinstance(value, str) else self._annotation(value)}" for name, value in own.items()
            ]
        documentation = thing.__doc__
        if is_class or documentation not in thing.__code__.co_consts[:1]:
            said.append(str(documentation))
        return said

    def _annotation(self, value: Any) -> str:
        """Another annotation as text. The same few stand at most places, and typing takes a while to name them."""
        known = self._annotations.get(id(value))
        if known is None:
            text = name_of(value) if isinstance(value, type) else str(value)
            text = _ADDRESS.sub("", text) if " at 0x" in text else text
            known = self._annotations[id(value)] = value, text
        return known[1]

    def _method(self, method: types.MethodType) -> str:
        owner = method.__self__
        number = "" if isinstance(owner, type) else self.number_of(owner)
        return f"method:{self.identity(method.__func__)}@{self.of_place(owner)}@{number}"

    def _cell(self, cell: types.CellType) -> str:
        # What two functions share, one changes for the other.
        try:
            return f"{self.number_of(cell)}:{self._member(cell.cell_contents)}"
        except ValueError:
            return "empty"

    def _partial(self, partial: functools.partial[Any]) -> str:
        keywords = [f"{name}={self._member(value)}" for name, value in sorted(partial.keywords.items())]
        return f"partial:{self.identity(partial.func)}:{self._all(list(partial.args))}:{','.join(keywords)}"

    def _c_callable(self, value: Any) -> str:
        bound = getattr(value, "__self__", None)
        module = sys.modules.get(str(getattr(value, "__module__", None)))
        is_function = vars(module).get(value.__name__) is value if module is not None else False
        if bound is None or is_function or isinstance(bound, (types.ModuleType, type)):
            return _place_of(value)
        # What it is a method of is an argument that no guard may tell.
        if isinstance(bound, (set, frozenset)):
            return f"{_place_of(value)}@{sorted(map(self.constant, bound))}"
        told = self.constant(list(bound.items()) if isinstance(bound, dict) else bound)
        return f"{_place_of(value)}@{told}"

    def _finding(self, value: Any) -> str:
        # What else there is to it is a documentation.
        kind, arguments = type(value), value.__reduce__()[1]
        told = arguments[:1] if kind is _FIELD_OF_NAMED_TUPLES else arguments
        return f"{kind.__qualname__}({self._all(list(told))})"

    def _operator(self, operator: OpOverload | OpOverloadPacket) -> str:
        return describe_operator(operator, describe=self._of_calls.identity, constant=self._of_calls.constant)

    def _all(self, values: list[Any]) -> str:
        return ",".join(self._member(each) for each in values)

    def _overrides(self, own: Mapping[str, Any]) -> str:
        overrides = sorted(name for name, value in own.items() if _is_override(value))
        said = [f"{name}={self._member(own[name])}" for name in overrides]
        hooks = [f"{name}={self._member(hooks)}" for name, hooks in hooks_in(own).items()]
        return f"+{shortened(';'.join([*map(str, own), *said, *hooks]))}"


# Of an object on which nothing is set.
_NOTHING_SET = f"+{shortened('')}"


def registered_with(kind: type) -> Iterator[type]:
    """Classes that were registered as subclasses of an abstract class, or of one of its own."""
    found = (reference() for reference in _abc._get_dump(kind)[0]) if isinstance(kind, abc.ABCMeta) else ()
    yield from (each for each in found if each is not None)
    subclasses: list[type] = type.__subclasses__(kind)
    for inner in subclasses:
        yield from registered_with(inner)


def is_at_its_place(value: Any) -> bool:
    """Whether a class or function is the one that its name leads to, or is of a compiled module, which has one."""
    if isinstance(value, type) and _is_compiled(value.__module__, sys.modules.get(value.__module__)):
        return True
    return value_at(value.__module__, value.__qualname__) is value


def _is_combined(key: object, member: enum.Flag) -> bool:
    """Whether a member of an enumeration of flags was made of others when somebody asked for it, and holds nothing."""
    own = vars(member)
    return own.keys() <= _OF_MEMBERS and type(key) is int and own.get(_VALUE) == key


def _is_compiled(name: str, module: Any) -> bool:
    return name in sys.builtin_module_names or str(getattr(module, "__file__", None)).endswith(_COMPILED)


def _is_plain(mapping: Any) -> bool:
    return type(mapping) in _PLAIN_MAPPINGS


def _keys_of(mapping: Mapping[Any, Any]) -> list[Any]:
    """The keys of a mapping, which may be what a class holds."""
    keys = list(mapping)
    if type(mapping) in (dict, types.MappingProxyType) and NAMES_OF_SLOTS in mapping:
        keys.remove(NAMES_OF_SLOTS)
    return keys


def _is_override(value: Any) -> bool:
    return type(value) not in _NEVER_CALLED and isinstance(value, _OVERRIDES)


def _place_of(value: Any) -> str:
    owner = getattr(value, "__objclass__", None) or getattr(value, "__self__", None)
    place = owner.__name__ if isinstance(owner, types.ModuleType) else type(owner).__qualname__
    if isinstance(owner, type):
        place = name_of(owner)
    return f"builtin:{place}:{getattr(value, '__qualname__', value.__name__)}"


def _pattern(pattern: re.Pattern[Any]) -> str:
    if pattern.flags & re.LOCALE:
        raise Unsayable(f"the pattern {pattern.pattern!r}, which follows the locale")
    return f"pattern:{text_of(pattern.pattern)}:{pattern.flags}"


def _no_script(value: Any) -> str:
    raise Unsayable(f"a function that torch.jit compiled ({getattr(value, 'name', '')})")
