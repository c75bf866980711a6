"""Descriptions of values: short texts, equal in two processes exactly where a trace would have found the same.

Functions are described by their code, defaults and closures, classes by all that their own and inherited attributes
do, modules by what is set on instances. What a description cannot tell is refused, so that nothing rests on a guess.

The describer remembers what it has described, and decides by what a value is compared. What each kind of object is told
by, parts of their own say (description_ways.py), which ask the describer for what that object holds.
"""

from __future__ import annotations

import collections
import enum
import inspect
import os
import sys
import types
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any

import torch
from torch.distributions.constraints import Constraint

from compilefarm.reuse.annotation_texts import AnnotationTexts
from compilefarm.reuse.called_functions import described_with_all_named
from compilefarm.reuse.class_descriptions import describe_own_members
from compilefarm.reuse.code_objects import DescribedCodes, text_of
from compilefarm.reuse.collection_descriptions import (
    describe_mapping,
    describe_members_of_set,
    describe_order,
    ranks_of_members,
)
from compilefarm.reuse.describing import AlikeObjects
from compilefarm.reuse.description_texts import CONSTANTS, is_at_its_place, name_of, shortened
from compilefarm.reuse.description_ways import WAYS, WAYS_OF_KINDS
from compilefarm.reuse.memory_places import MemoryPlaces
from compilefarm.reuse.module_descriptions import describe_chain
from compilefarm.reuse.names_in_code import C_CALLABLES, Modules
from compilefarm.reuse.numpy_descriptions import describe_of_numpy
from compilefarm.reuse.object_descriptions import WITH_OTHER_NAMESPACE, describe_object
from compilefarm.reuse.refusals import Unsayable
from compilefarm.reuse.type_descriptions import describe_form_of_types
from compilefarm.reuse.value_descriptions import (
    LOOKED_INTO,
    NUMBERS_AND_TEXTS,
    describe_looked_into,
    describe_member_of_enumeration,
    describe_of_own_class,
)

_TORCH_CONSTANTS = (torch.dtype, torch.device, torch.layout, torch.memory_format)
# What is a member of a class as it is, and of nothing else.
_NAMED = frozenset({*CONSTANTS, *C_CALLABLES, types.FunctionType, property, staticmethod, classmethod})
_SEQUENCES = (list, tuple, collections.deque)
# Who is the same object cannot matter, or is told by itself.
_TOLD_BY_VALUE = (
    *WITH_OTHER_NAMESPACE,
    type(None),
    bool,
    enum.Enum,
    *C_CALLABLES,
    *_TORCH_CONSTANTS,
)


class Describer:
    """Describes values. It remembers what it has described: one is for one moment.

    Args:
        orders: whether sets are told in the order that they have in this process, which is nobody else's.
        beginnings: whether it is told where in its memory each tensor begins.
        modules: those of this moment; looked for if they are not given.

    Attributes:
        modules: those of this moment.
        memory: where tensors lie.
        orders, alike, annotations, codes, read_by_name: what parts of descriptions ask for (describing.py).
    """

    def __init__(self, *, orders: bool = False, beginnings: bool = False, modules: Modules | None = None) -> None:
        self.modules = modules or Modules()
        self.memory = MemoryPlaces(beginnings=beginnings)
        self.orders = orders
        self.alike = AlikeObjects()
        self.annotations = AnnotationTexts()
        self.codes = DescribedCodes()
        # Where os.environ keeps its variables. A program may have put something else there.
        variables = getattr(os.environ, "__dict__", {}).values()
        self.read_by_name: Set[int] = {id(each) for each in variables} | {id(sys.modules)}
        self._known: dict[int, tuple[Any, str]] = {}
        self._places: dict[int, tuple[Any, str]] = {}
        self._told_by_value: dict[int, bool] = {}
        self._numbers: dict[int, tuple[object, int]] = {}
        self._apart: Describer | None = None

    @property
    def of_calls(self) -> Describer:
        """Describes what is called while tracing, and goes through sets as it likes."""
        if self.orders:
            return self
        if self._apart is None:
            self._apart = Describer(orders=True, modules=self.modules)
        return self._apart

    def has_described(self, code: types.CodeType) -> bool:
        """Whether a description tells this code, as that of a function, a method, or a function within one."""
        return code in self.codes

    def constant(self, value: Any) -> str:
        """Describes a value that is compared by what it is equal to.

        Raises:
            Unsayable: it is not made of constants.
        """
        kind = type(value)
        if kind in CONSTANTS:
            return text_of(value)
        if kind in _TORCH_CONSTANTS:
            return f"torch:{value!r}"
        if isinstance(value, enum.Enum):
            return describe_member_of_enumeration(self, value)
        if kind in (tuple, list, torch.Size):
            return f"{kind.__name__}({','.join(self.constant(each) for each in value)})"
        if kind in (set, frozenset):
            return f"{kind.__name__}({','.join(describe_members_of_set(self, value, self.constant))})"
        if kind is slice:
            return f"slice({','.join(self.constant(each) for each in (value.start, value.stop, value.step))})"
        if kind is range:
            return f"range({value.start},{value.stop},{value.step})"
        if isinstance(value, NUMBERS_AND_TEXTS):
            return describe_of_own_class(self, value)
        if kind is type({}.keys()):
            return f"dict_keys({','.join(self.constant(each) for each in value)})"
        return self.identity(value)

    def identity(self, value: Any) -> str:
        """Describes a value that is compared by its identity.

        Raises:
            Unsayable: it has nothing by which another process could find its like.
        """
        place = id(value)
        known = self._known.get(place)
        if known is not None:
            return known[1]
        # For what leads back to it meanwhile.
        self._known[place] = value, "itself"
        try:
            way = WAYS_OF_KINDS.get(type(value))
            text = way(self, value) if way is not None else self._identity(value)
            if isinstance(value, (type, types.FunctionType)) and not is_at_its_place(value):
                text = self.alike.told_apart(text)
        except BaseException:
            del self._known[place]
            raise
        self._known[place] = value, text
        return text

    def of_class(self, kind: type) -> str:
        """Describes a class by all that its instances inherit."""
        known = self._known.get(id(kind))
        return self.identity(kind) if known is None else known[1]

    def of_own_members(self, kind: type) -> str:
        """Describes a class by what it does not inherit."""
        place = -id(kind) - 1
        known = self._known.get(place)
        if known is None:
            known = self._known[place] = kind, describe_own_members(self, kind)
        return known[1]

    def of_place(self, value: Any) -> str:
        """Describes the kind of object that stands somewhere: its class, and what is set on it.

        Of what is set, the names are told, since a name that was not there was looked up elsewhere; and what can be
        called, since it takes the place of a method.
        """
        known = self._places.get(id(value))
        if known is None:
            known = self._places[id(value)] = value, describe_object(self, value)
        return known[1]

    def of_places(self, values: Iterable[tuple[Any, bool]]) -> Iterator[str]:
        """Describes what stands at several places, each with whether a guard is on it, and at which of them stands the
        same object.

        Dynamo guards that two places have the same object, and not that they have two.
        """
        places, told_by_value, numbers = self._places, self._told_by_value, self._numbers
        empty = ""
        for value, is_guarded in values:
            # Before the number: there are few kinds of objects, and many objects.
            kind = type(value)
            known = places.get(id(value))
            if known is not None:
                text = shortened(known[1])
            elif kind is not collections.OrderedDict or value or value.__dict__:
                text = shortened(self.of_place(value))
            else:
                # Half of all objects (object_descriptions.py), which are all described alike.
                text = empty = empty or shortened(self.of_place(value))
            if not is_guarded and (content := self.of_content(value)):
                text = f"{text}:{content}"
            # By address: a metaclass may say which classes are equal. What is described is kept, and so is its class.
            is_told = told_by_value.get(id(kind))
            if is_told is None:
                is_told = told_by_value[id(kind)] = issubclass(kind, _TOLD_BY_VALUE)
            if is_told:
                yield text
            else:
                # A method is made whenever somebody asks for it, and equal to others of the same object.
                one = value.__self__ if isinstance(value, types.MethodType) else value
                numbered = numbers.get(id(one))
                if numbered is None:
                    # As number_of, which takes a call for each of some thousands.
                    numbered = numbers[id(one)] = one, len(numbers)
                yield f"{text}@{numbered[1]}"

    def of_content(self, value: Any) -> str:
        """Describes what stands at a place that no guard is on: what it is equal to, or else how much it holds. Parts
        of it that were looked at have places of their own."""
        if value is sys.modules:
            return describe_order(self, list(value))
        try:
            return shortened(self.constant(value))
        except Unsayable:
            return str(len(value)) if isinstance(value, _SEQUENCES) else ""

    def number_of(self, value: object) -> int:
        """The number of an object among those that were asked for: at how many places it stands, it has the same."""
        return self._numbers.setdefault(id(value), (value, len(self._numbers)))[1]

    def of_order(self, keys: list[Any]) -> str:
        """Describes keys in their order, which decides what popitem finds and no guard tells."""
        return describe_order(self, keys)

    def ranks_of_members(self, members: Any) -> list[int]:
        """Which one each member of a set is, in an order that is the same in each process, unless that of this process
        counts.

        Raises:
            Unsayable: members are described alike, or it is no plain set.
        """
        return ranks_of_members(self, members)

    def of_chain(self, scope: Mapping[str, Any], chain: str, *, module: types.ModuleType | None = None) -> str:
        """Describes what code finds that names a global and attributes of modules and classes on it.

        Args:
            scope: the globals.
            chain: the names, with dots between.
            module: whose globals they are, if it may have been asked for the first name.
        """
        return describe_chain(self, scope, chain, module=module)

    def of_content_alone(self, value: Any) -> str:
        """Describes what no guard is on, whatever of it is read, with all that functions in it name.

        Raises:
            Unsayable: it is, or holds, an object that is not compared by what it is equal to; or a function rests on
                more than what it names.
        """
        return shortened("\n".join(described_with_all_named(value, self.identity, self.constant, {})))

    def member(self, value: Any) -> str:
        """Describes what a class, a function or their like holds."""
        if type(value) in _NAMED:
            known = self._known.get(id(value))
            return self.named(value) if known is None else known[1]
        if isinstance(value, type):
            # No name leads to a class that a function makes, also where it is called as if one did.
            is_named = "<locals>" not in value.__qualname__ and is_at_its_place(value)
            return f"class:{name_of(value)}" if is_named else self.of_class(value)
        if isinstance(value, (inspect.Signature, inspect.Parameter)):
            return f"{type(value).__name__}:{value}"
        if isinstance(value, (set, frozenset)):
            return f"{type(value).__name__}({','.join(describe_members_of_set(self, value, self.member))})"
        if isinstance(value, (list, tuple)):
            return f"{type(value).__name__}({','.join(self.member(each) for each in value)})"
        # Of other values, collections.abc looks through all mappings that there are.
        if hasattr(type(value), "items") and isinstance(value, Mapping) and (text := describe_mapping(self, value)):
            return text
        if isinstance(value, Constraint):
            return f"{self.of_class(type(value))}({self.member(vars(value))})"
        if type(value) in LOOKED_INTO:
            return describe_looked_into(self, value)
        return self.named(value)

    def all_members(self, values: list[Any]) -> str:
        """Describes all that something holds."""
        return ",".join(self.member(each) for each in values)

    def named(self, value: Any) -> str:
        """Describes what a name leads to, or else of which class it is."""
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
        if kind in CONSTANTS or kind in _TORCH_CONSTANTS or isinstance(value, enum.Enum):
            return self.constant(value)
        if value is NotImplemented:
            return "NotImplemented"
        for matches, describe in WAYS:
            if isinstance(value, matches):
                return describe(self, value)
        if kind.__module__.startswith("numpy"):
            return describe_of_numpy(value)
        if kind.__module__ == "typing" or isinstance(value, (types.GenericAlias, types.UnionType)):
            return describe_form_of_types(self, value)
        raise Unsayable(f"an object of type {name_of(kind)}")
