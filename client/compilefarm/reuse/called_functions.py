"""Descriptions of functions that Dynamo calls while it traces, and does not trace: with all that they name.

What they return is in the trace, and no guard tells what it rests on. So a function is refused that asks for more than
its arguments and what it names: for a module as a whole, names among globals, files, variables, the state of a process.
"""

from __future__ import annotations

import builtins
import collections
import contextvars
import dis
import enum
import functools
import operator
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from compilefarm.reuse.code_objects import codes_within
from compilefarm.reuse.names_in_code import (
    chains_of,
    is_module_of_python,
    is_of_a_release,
    root_of,
    static_attribute,
)
from compilefarm.reuse.refusals import Unsayable
from compilefarm.reuse.released_functions import contents_of, is_put_there, named_within, said_of
from compilefarm.torch_internals.dynamo_frames import ADDRESS_OF_WRAPPED
from compilefarm.torch_internals.pytrees import WITH_REGISTRIES
from compilefarm.torch_internals.traced_functions import asks_by_name

_Describe = Callable[[Any], str]

# Builtins whose results rest on more than their arguments.
_OF_PROCESS = frozenset(
    {"__import__", "compile", "dir", "eval", "exec", "globals", "hash", "id", "input", "locals", "open", "vars"}
)
# Modules of the standard library whose functions compute of their arguments alone.
_COMPUTING = frozenset(
    {
        "_abc", "_collections", "_collections_abc", "_functools", "_heapq", "_operator", "_typing", "abc", "bisect",
        "builtins", "cmath", "collections", "contextlib", "dataclasses", "enum", "fractions", "functools",
        "heapq", "itertools", "math", "numbers", "operator", "re", "reprlib", "statistics", "string", "textwrap",
        "types", "typing",
    }
)  # fmt: skip
# Functions of torch that tell of a state, by their names, and tell what is compared by itself (states.py), or of their
# arguments.
_COMPARED = frozenset(
    {
        "are_deterministic_algorithms_enabled", "get_autocast_dtype", "get_ctx", "get_default_device",
        "get_default_dtype", "get_num_threads", "get_rank", "get_world_size", "is_autocast_enabled", "is_available",
        "is_compiling", "is_complex", "is_floating_point", "is_grad_enabled", "is_inference_mode_enabled",
        "is_initialized", "is_tensor",
    }
)  # fmt: skip
# What finds attributes by texts, by name; and how code does that asks which class something is of.
_BY_TEXT = frozenset(
    {
        "__dict__", "__dir__", "__getattr__", "__getattribute__", "__getstate__", "__reduce__", "__reduce_ex__",
        "attrgetter", "format", "format_map", "getattr", "hasattr", "methodcaller",
    }
)  # fmt: skip
_MATCHES_CLASS = dis.opmap["MATCH_CLASS"]
_ABSENT = object()
_PLAIN_KINDS = frozenset({type(None), bool, int, float, complex, str, bytes})
# Of a class: what Python keeps there, and what is told with the class.
_PLAIN_MEMBERS = (*_PLAIN_KINDS, types.GetSetDescriptorType)
_C_FUNCTIONS = (
    types.BuiltinFunctionType,
    types.ClassMethodDescriptorType,
    types.MemberDescriptorType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
)


def functions_in(member: Any) -> Iterator[types.FunctionType]:
    """Functions that a member of a class calls."""
    if isinstance(member, (staticmethod, classmethod)):
        member = member.__func__
    if isinstance(member, functools.cached_property):
        member = member.func
    found = (member.fget, member.fset) if isinstance(member, property) else (member,)
    yield from (each for each in found if isinstance(each, types.FunctionType))


# What was reached, by its identity: itself, so that nothing else has that, and its number.
Reached = dict[int, tuple[object, int]]


def described_with_all_named(value: Any, describe: _Describe, constant: _Describe, known: Reached) -> Iterator[str]:
    """Descriptions of a value, and of all values that it consists of, or names if it is a function.

    Args:
        value: that is described.
        describe: describes functions and classes.
        constant: describes what is compared by value; raises Unsayable for anything else.
        known: what is described already, and told by its number: which one it is may decide.

    Raises:
        Unsayable: a function rests on more than what it names.
    """
    if type(value) in _PLAIN_KINDS:
        # Which of those that are equal are one object, each process decides.
        yield constant(value)
    elif (found := known.get(id(value))) is not None:
        yield f"#{found[1]}"
    else:
        known[id(value)] = value, len(known)
        yield from _described(value, describe, constant)
        for each in _inner_of(value):
            yield from described_with_all_named(each, describe, constant, known)


def all_reached(values: Iterable[Any], known: Reached) -> Iterator[Any]:
    """Values, and all that they consist of, or name if they are functions; each once.

    Args:
        values: to begin with.
        known: what is passed over; what is found is added.

    Raises:
        Unsayable: a function imports what is not known.
    """
    for value in values:
        if id(value) not in known:
            known[id(value)] = value, len(known)
            yield value
            yield from all_reached(_inner_of(value), known)


def names_read_by(values: Iterable[Any]) -> frozenset[str] | None:
    """Names of attributes that functions among some values may read of an object; None if it may be any, since the name
    is a text."""
    names = set[str]()
    for value in values:
        if isinstance(value, types.FunctionType):
            for code in codes_within(value.__code__):
                names.update(code.co_names)
                if _MATCHES_CLASS in code.co_code[::2]:
                    return None
            if is_module_of_python(value.__module__ or "") and is_of_a_release(value):
                return None
        elif isinstance(value, operator.attrgetter):
            return None
        elif isinstance(value, (*_C_FUNCTIONS, type)):
            names.add(value.__name__)
    return None if names & _BY_TEXT else frozenset(names)


def _described(value: Any, describe: _Describe, constant: _Describe) -> Iterator[str]:
    if isinstance(value, types.ModuleType):
        raise Unsayable(f"the module {value.__name__}, of which a function asks that is called and not traced")
    if isinstance(value, contextvars.ContextVar):
        raise Unsayable(f"the context variable {value.name}, which a function asks for that is called and not traced")
    if isinstance(value, functools._lru_cache_wrapper) and not is_of_a_release(value):
        # It was filled before now, when what it rests on may have been something else.
        raise Unsayable(f"what {value.__name__} has remembered, which is called and not traced")
    if isinstance(value, types.FunctionType) and is_of_a_release(value):
        _require_computes(value)
        yield f"function:{said_of(value)}"
    elif isinstance(value, _C_FUNCTIONS):
        _require_computes(value)
        yield describe(value)
    elif isinstance(value, (type, types.FunctionType)):
        yield describe(value)
    elif not isinstance(value, _HOLDING) and type(value) not in _MAPPINGS:
        yield constant(value)
    else:
        yield type(value).__qualname__


def _require_computes(function: Any) -> None:
    """Passes if a function of a release returns what follows from its arguments, or from what is compared by itself.

    Raises:
        Unsayable: it does not, or may not.
    """
    name, owner = function.__name__, getattr(function, "__objclass__", None) or getattr(function, "__self__", None)
    module = getattr(function, "__module__", None) or getattr(owner, "__module__", None) or ""
    root = root_of(module)
    if root == "torch":
        is_told = (not asks_by_name(name) or name in _COMPARED) and module not in WITH_REGISTRIES
    else:
        is_told = (root in _COMPUTING or not is_module_of_python(root)) and name not in _OF_PROCESS
    if not is_told or name == "__subclasses__":
        raise Unsayable(f"{module}.{name}, which a function calls that is not traced")


# What is looked into, and says nothing else.
_HOLDING = (
    functools.cached_property,
    functools.partial,
    functools.partialmethod,
    list,
    property,
    staticmethod,
    classmethod,
    tuple,
    types.MappingProxyType,
    types.MethodType,
)
_MAPPINGS = frozenset({dict, collections.OrderedDict, collections.defaultdict})
# Numbers, texts and whole sequences of classes of one's own have what these hold.
_OF_OWN_CLASSES = (int, float, complex, str, bytes, list, tuple, enum.Enum)


def _inner_of(value: Any) -> Iterator[Any]:
    """What a value consists of, or names."""
    if isinstance(value, _OF_OWN_CLASSES) and not is_of_a_release(type(value)):
        yield type(value)
        yield from getattr(value, "__dict__", {}).values()
    match value:
        case types.FunctionType():
            yield from _told_of_released(value) if is_of_a_release(value) else _named_by(value)
        case type():
            yield from _members_of(value)
        case functools.partial() | functools.partialmethod():
            yield from (value.func, *value.args, *value.keywords.values())
        case functools.cached_property():
            yield value.func
        case property():
            yield from (each for each in (value.fget, value.fset) if each is not None)
        case staticmethod() | classmethod():
            yield value.__func__
        case list() | tuple() | set() | frozenset():
            yield from value
        case types.MethodType():
            yield from (value.__func__, value.__self__)
        case types.BuiltinFunctionType() if not isinstance(value.__self__, (types.ModuleType, type)):
            yield value.__self__
        case types.MappingProxyType() | dict():
            yield from _inner_of_mapping(value)


def _inner_of_mapping(value: Mapping[Any, Any]) -> Iterator[Any]:
    yield from value.keys()
    yield from value.values()
    yield from (getattr(value, "default_factory", None),)


def _members_of(kind: type) -> Iterator[Any]:
    """What objects of a class find there. Constants are told with the class."""
    if issubclass(kind, enum.Enum):
        yield from kind.__members__.values()
    for base in kind.__mro__:
        is_released = is_of_a_release(base)
        for name, member in sorted(vars(base).items()):
            if is_released and not is_put_there(member):
                continue
            if not (isinstance(member, (*_PLAIN_MEMBERS, enum.Enum)) or name in OF_CLASSES):
                yield member


# What copyreg keeps in a class, once somebody has copied or pickled an instance.
NAMES_OF_SLOTS = "__slotnames__"
# What Python and its modules keep in classes.
OF_CLASSES = frozenset(
    {
        "__abstractmethods__", "__annotations__", "__dataclass_fields__", "__dataclass_params__", "__dict__",
        "__orig_bases__", "__parameters__", "__weakref__", "_abc_impl", "_member_map_", "_member_names_",
        NAMES_OF_SLOTS, "_member_type_", "_value2member_map_",
    }
)  # fmt: skip


def _told_of_released(function: types.FunctionType) -> Iterator[Any]:
    # torch.library wraps what it is given.
    yield from filter(_is_given, contents_of(function))
    yield from named_within(function)


def _is_given(value: Any) -> bool:
    return isinstance(value, (types.FunctionType, functools.partial, type, torch.dtype, str))


def _named_by(function: types.FunctionType) -> Iterator[Any]:
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    yield from contents_of(function)
    yield from (each for name, each in vars(function).items() if name != ADDRESS_OF_WRAPPED)
    for chain in sorted(set(chains_of(function.__code__))):
        first, *rest = chain.split(".")
        yield from _values_along(function.__globals__.get(first, getattr(builtins, first, None)), rest)
    yield from _imported_by(function.__code__)


def _values_along(value: Any, names: list[str]) -> Iterator[Any]:
    """What names of attributes lead to, and classes on the way that have a part in it: since their metaclasses compute
    it, or since functions that are found there read them.

    Raises:
        Unsayable: a module answers itself.
    """
    for name in names:
        if not isinstance(value, (types.ModuleType, type)):
            break
        owner, value = value, static_attribute(value, name, _ABSENT)
        is_plain = type(value) in _PLAIN_KINDS and is_of_a_release(type(owner))
        if isinstance(owner, type) and not (is_plain or is_of_a_release(owner)):
            yield owner
        if value is _ABSENT and isinstance(owner, types.ModuleType):
            raise Unsayable(f"{owner.__name__}.{name}, which a function asks for that is called and not traced")
    yield value if value is not _ABSENT else None


def _imported_by(code: types.CodeType) -> Iterator[Any]:
    """What code imports, as far as it names it.

    Raises:
        Unsayable: it imports a module that is not imported yet, or names nothing of one.
    """
    for name in [each.argval for each in dis.get_instructions(code) if each.opname == "IMPORT_NAME"]:
        found = list(_named_in(sys.modules.get(name), code.co_names, set()))
        if not found:
            raise Unsayable(f"{code.co_qualname}, which imports {name} and is called and not traced")
        yield from found
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _imported_by(constant)


def _named_in(module: types.ModuleType | None, names: Sequence[str], seen: set[int]) -> Iterator[Any]:
    """What a module, and modules in it that are named, have under some names."""
    seen.add(id(module))
    for value in (vars(module)[name] for name in names if module is not None and name in vars(module)):
        if not isinstance(value, types.ModuleType):
            yield value
        elif id(value) not in seen:
            yield from _named_in(value, names, seen)
