"""Functions of a release that Dynamo calls and does not trace, and what these name that a program has replaced.

Their sources are those of the release. That every name in them still leads to what the release has there, these do not
say: who replaces a function that they call, or a method of a class that they use, changes what they return.
"""

from __future__ import annotations

import builtins
import functools
import types
from collections.abc import Iterator
from typing import Any

from compilefarm.reuse.names_in_code import chains_of, is_module_of_python, is_of_a_release, static_attribute

_ABSENT = object()
# Truth and None are left out: torch and the standard library remember in such what they have done already.
_CONSTANTS = frozenset({int, float, complex, str, bytes})
_C_FUNCTIONS = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
_PYTHON_CALLABLES = (type, types.FunctionType, types.MethodType, functools.partial)
_PARTIAL = (functools.partial, functools.partialmethod)
# Py_TPFLAGS_HEAPTYPE
_HEAP_TYPE = 1 << 9


def said_of(value: Any) -> str:
    """Which function or class of a release something is; of a function, with what a program may have set on it."""
    if isinstance(value, _C_FUNCTIONS):
        return value.__qualname__
    text = f"{value.__module__}.{value.__qualname__}"
    if not isinstance(value, types.FunctionType):
        return text
    defaults = [*enumerate(value.__defaults__ or ()), *sorted((value.__kwdefaults__ or {}).items())]
    given = [*((name, each) for name, each in defaults if type(each) is bool or each is None), *_constants_of(defaults)]
    held = _constants_of(enumerate(contents_of(value)))
    return f"{text}:{value.__code__.co_qualname}:{len(defaults)}:{given}:{held}"


def named_within(function: types.FunctionType) -> Iterator[Any]:
    """What a function of a release names, and what functions and classes of the standard library that it names do.

    Of torch's functions nothing further is looked at: they name each other by thousands.

    Yields:
        texts that say which functions, classes and constants these are; and what can be called and is none of a
        release, as it is.
    """
    waiting: list[Any] = [function]
    seen: dict[int, object] = {id(function): function}
    while waiting:
        for name, member in _named_by(waiting.pop()):
            value = _unwrapped(member)
            if type(value) in _CONSTANTS and name != "__doc__":
                yield f"{name}={value!r}"
            elif not callable(value) or id(value) in seen:
                # Objects may be what a release remembers, which differs from moment to moment.
                continue
            elif isinstance(value, (type, types.FunctionType, *_C_FUNCTIONS)) and is_of_a_release(value):
                seen[id(value)] = value
                yield f"{name}={said_of(value)}"
                if not isinstance(value, _C_FUNCTIONS) and is_module_of_python(value.__module__ or ""):
                    waiting.append(value)
            elif isinstance(value, _PYTHON_CALLABLES) or not is_of_a_release(type(value)):
                yield value


def is_put_there(member: Any) -> bool:
    """Whether a member of a class of a release is one that a program has put there."""
    function = _unwrapped(member)
    return isinstance(function, _PARTIAL) or (
        isinstance(function, types.FunctionType) and not is_of_a_release(function)
    )


def _named_by(thing: Any) -> Iterator[tuple[str, Any]]:
    """What a function names, or what a class has, by name, in an order that is the same in each process."""
    if isinstance(thing, type):
        # What C defines cannot be patched.
        yield from sorted(vars(thing).items()) if thing.__flags__ & _HEAP_TYPE else ()
        yield from ((base.__qualname__, base) for base in thing.__mro__[1:])
        return
    yield from (("default", each) for each in thing.__defaults__ or () if callable(each))
    for chain in sorted(set(chains_of(thing.__code__))):
        first, *rest = chain.split(".")
        value = thing.__globals__.get(first, getattr(builtins, first, _ABSENT))
        for name in rest:
            if not isinstance(value, (types.ModuleType, type)):
                break
            if isinstance(value, type):
                yield chain, value
            value = static_attribute(value, name, _ABSENT)
        yield chain, value


def _unwrapped(member: Any) -> Any:
    """The function in a member of a class, or in a cache."""
    if isinstance(member, (staticmethod, classmethod)):
        return member.__func__
    if isinstance(member, property):
        return member.fget
    if isinstance(member, functools.cached_property):
        return member.func
    return member.__wrapped__ if isinstance(member, functools._lru_cache_wrapper) else member


def _constants_of(named: Any) -> list[tuple[Any, Any]]:
    return [(name, each) for name, each in named if type(each) in _CONSTANTS]


def contents_of(function: types.FunctionType) -> Iterator[Any]:
    """What a function has in its closure."""
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:
            yield "empty"
