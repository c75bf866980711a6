"""Descriptions of functions that Dynamo calls while it traces, and does not trace: with all that they name.

What they return is in the trace, and no guard tells what it rests on.
"""

from __future__ import annotations

import builtins
import types
from collections.abc import Callable, Iterator
from typing import Any

from compilefarm.reuse.names_in_code import chains_of, is_module_of_a_release, static_attribute


def functions_in(member: Any) -> Iterator[types.FunctionType]:
    """Functions that a member of a class calls."""
    if isinstance(member, (staticmethod, classmethod)):
        member = member.__func__
    found = (member.fget, member.fset) if isinstance(member, property) else (member,)
    yield from (each for each in found if isinstance(each, types.FunctionType))


def described_with_all_named(
    value: Any, describe: Callable[[Any], str], constant: Callable[[Any], str], seen: set[int]
) -> Iterator[str]:
    """Descriptions of a value, and of all values that it names if it is a function.

    Args:
        value: that is described.
        describe: describes functions, classes and modules.
        constant: describes what is compared by value; raises Unsayable for anything else.
        seen: identities of what is described already.
    """
    if id(value) in seen:
        return
    seen.add(id(value))
    if not isinstance(value, types.FunctionType):
        is_code = isinstance(value, (type, types.ModuleType, types.BuiltinFunctionType))
        yield describe(value) if is_code else constant(value)
    elif is_module_of_a_release(value.__module__ or ""):
        yield f"function:{value.__module__}.{value.__qualname__}"
    else:
        yield describe(value)
        for each in _named_by(value):
            yield from described_with_all_named(each, describe, constant, seen)


def _named_by(function: types.FunctionType) -> Iterator[Any]:
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    yield from (cell.cell_contents for cell in function.__closure__ or ())
    for chain in sorted(set(chains_of(function.__code__))):
        first, *rest = chain.split(".")
        value = function.__globals__.get(first, getattr(builtins, first, None))
        for name in rest:
            if isinstance(value, (types.ModuleType, type)):
                value = static_attribute(value, name, None)
        yield value
