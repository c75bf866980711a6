"""Which members of a class Dynamo calls while it traces, and does not trace, and what else of the class these read."""

from __future__ import annotations

import enum
import functools
import inspect
import types
from collections.abc import Iterable, Iterator
from typing import Any

from compilefarm.reuse.called_functions import NAMES_OF_SLOTS, OF_CLASSES, all_reached, names_read_by
from compilefarm.reuse.names_in_code import C_CALLABLES, is_of_a_release
from compilefarm.reuse.released_functions import is_put_there

# Of a class: what Python and its modules keep there, which says nothing of what instances do.
BOOKKEEPING = frozenset(
    {
        "__dict__", "__weakref__", "__doc__", "__annotations__", "__module__", "__abstractmethods__", "_abc_impl",
        "__parameters__", "__orig_bases__", "__static_attributes__", "__firstlineno__", "__annotate_func__",
        "__annotations_cache__", "__dataclass_params__", "__type_params__", NAMES_OF_SLOTS,
    }
)  # fmt: skip
# Of an object: what Dynamo calls and does not trace.
_CALLED = frozenset({"__class_getitem__"})
# Of descriptors, those whose functions are asked for by themselves.
_PLAIN_DESCRIPTORS = (
    types.FunctionType,
    types.MethodType,
    staticmethod,
    classmethod,
    property,
    functools.cached_property,
)
# What Dynamo has as constants also where they are of a class of their own. It leaves them to Python, which calls that
# class: for their truth, order and text, and for what computes attributes.
_CONSTANT_BASES = (int, float, complex, str, bytes, tuple)
# These it traces.
_TRACED = frozenset({"__call__", "__init__", "__init_subclass__", "__new__"})
# Of a metaclass: what is called when a class is made, and not again.
_MAKING_CLASSES = frozenset({"__init__", "__new__", "__prepare__"})
# Of a member of an enumeration: its class, and another member, once somebody has asked for it.
_OF_ENUMERATIONS = frozenset({"__objclass__", "_inverted_"})
# Where a member of an enumeration has its value, which it tells by the name in it.
_VALUE = "_value_"


def called_members(kind: type) -> list[Any]:
    """What a class has that Dynamo calls and does not trace, and what that reads of the class or of its members, if it
    is an enumeration.

    Raises:
        Unsayable: a function imports what is not known.
    """
    makers = list(_of_metaclasses(kind))
    wanted = {name for base in kind.__mro__ for name in _called_in(base, kind)}
    if not wanted and not makers:
        return []
    members: dict[str, list[Any]] = {}
    for base in kind.__mro__:
        is_released = is_of_a_release(base)
        for name, member in vars(base).items():
            if is_released and not is_put_there(member):
                continue
            if name not in BOOKKEEPING | OF_CLASSES and not _is_of_a_release(member):
                members.setdefault(name, []).append(member)
    while True:
        found = [member for name in sorted(wanted & members.keys()) for member in members[name]]
        read = names_read_by(all_reached([*makers, *found], {}))
        more = members.keys() if read is None else wanted | (read & members.keys())
        if more == wanted:
            return [*found, *_of_enumeration(kind, read)]
        wanted = set(more)


def _is_of_a_release(member: Any) -> bool:
    return isinstance(member, types.FunctionType) and is_of_a_release(member)


def _of_metaclasses(kind: type) -> Iterator[Any]:
    for base in inspect.getmro(type(kind)) if type(kind) is not type else ():
        if not is_of_a_release(base):
            yield from (member for name, member in vars(base).items() if name not in BOOKKEEPING | _MAKING_CLASSES)


def _of_enumeration(kind: type, read: frozenset[str] | None) -> Iterator[Any]:
    """What functions read of the members of an enumeration, which no guard is on."""
    members: Iterable[enum.Enum] = kind.__members__.values() if issubclass(kind, enum.Enum) else ()
    names = None if read is None else read | {_VALUE} if _VALUE.strip("_") in read else read
    for member in members:
        own = sorted((name, value) for name, value in vars(member).items() if name not in _OF_ENUMERATIONS)
        yield from (value for name, value in own if names is None or name in names)


def _called_in(base: type, kind: type) -> Iterable[str]:
    """Names of what objects of a class have of a base that Dynamo calls and does not trace."""
    members = vars(base)
    if issubclass(kind, enum.Enum):
        # Its members are constants, and whatever is asked of them is computed.
        called: Iterable[str] = members
    elif issubclass(kind, _CONSTANT_BASES):
        called = [name for name in members.keys() - _TRACED if _is_called_by_python(name, members[name])]
    else:
        called = members.keys() & _CALLED
    called = [name for name in called if name not in BOOKKEEPING]
    if not called:
        return called
    runs_code = is_put_there if is_of_a_release(base) else _is_code
    return [name for name in called if runs_code(members[name])]


def _is_called_by_python(name: str, member: Any) -> bool:
    is_computed = isinstance(member, (property, functools.cached_property)) or _is_descriptor(member)
    return is_computed or (name.startswith("__") and name.endswith("__"))


def _is_descriptor(member: Any) -> bool:
    """Whether an object decides what is found where it stands. Those of a release call what a program gave them."""
    return hasattr(type(member), "__get__") and not isinstance(member, (*C_CALLABLES, *_PLAIN_DESCRIPTORS))


def _is_code(member: Any) -> bool:
    """Whether a member of a class runs code that is none of a release."""
    if isinstance(member, (staticmethod, classmethod)):
        return _is_code(member.__func__)
    if isinstance(member, property):
        return any(map(_is_code, (member.fget, member.fset)))
    if isinstance(member, functools.cached_property):
        return _is_code(member.func)
    if isinstance(member, types.FunctionType):
        return not is_of_a_release(member)
    if isinstance(member, (*C_CALLABLES, type, enum.Enum)):
        return False
    return callable(member) or _is_descriptor(member)
