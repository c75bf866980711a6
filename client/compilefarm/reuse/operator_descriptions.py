"""Descriptions of operators by what is registered for them in Python, which torch runs while it traces.

What an operator makes of shapes and how it is differentiated is somebody's code, which no guard tells: it is described
with all that it names, and refused where it reads what has no description.
"""

from __future__ import annotations

import builtins
import inspect
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from compilefarm.reuse.names_in_code import chains_of, root_of
from compilefarm.torch_internals.operators import OpOverload, OpOverloadPacket, name_of_packet
from compilefarm.torch_internals.registrations import (
    fake_implementation,
    functions_run_by_traces,
    torch_dispatch_rules,
)

_Describe = Callable[[Any], str]
# Their registrations are those of the release, or of what is refused as a replacement.
_OF_TORCH = frozenset({"aten", "prim", "prims", "inductor", "_c10d_functional", "quantized"})
_OF_RELEASES = frozenset({"torch", *sys.stdlib_module_names})


def describe_operator(operator: OpOverload | OpOverloadPacket, *, describe: _Describe, constant: _Describe) -> str:
    """Describes an operator.

    Args:
        operator: or all overloads of one.
        describe: describes functions, classes and modules.
        constant: describes what is compared by value; raises Unsayable for anything else.

    Raises:
        Unsayable: what it computes rests on what has no description.
    """
    packet = operator if isinstance(operator, OpOverloadPacket) else operator.overloadpacket
    name = name_of_packet(packet)
    if name.partition("::")[0] in _OF_TORCH:
        return f"operator:{operator}"
    seen: set[int] = set()
    parts = [each for function in _functions_of(name) for each in _all_of(function, describe, constant, seen)]
    return f"operator:{operator}:{parts}"


def _functions_of(name: str) -> Iterator[Any]:
    fake = fake_implementation(name)
    yield from () if fake is None else (fake[0],)
    yield from torch_dispatch_rules(name)
    yield from functions_run_by_traces(name)


def _all_of(
    value: Any, describe: Callable[[Any], str], constant: Callable[[Any], str], seen: set[int]
) -> Iterator[str]:
    """Descriptions of a value, and of all values that it names if it is a function."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if not isinstance(value, types.FunctionType):
        is_code = isinstance(value, (type, types.ModuleType, types.BuiltinFunctionType))
        yield describe(value) if is_code else constant(value)
    elif root_of(value.__module__ or "") in _OF_RELEASES:
        yield f"function:{value.__module__}.{value.__qualname__}"
    else:
        yield describe(value)
        for each in _named_by(value):
            yield from _all_of(each, describe, constant, seen)


def _named_by(function: types.FunctionType) -> Iterator[Any]:
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    yield from (cell.cell_contents for cell in function.__closure__ or ())
    for chain in sorted(set(chains_of(function.__code__))):
        first, *rest = chain.split(".")
        value = function.__globals__.get(first, getattr(builtins, first, None))
        for name in rest:
            if isinstance(value, (types.ModuleType, type)):
                value = inspect.getattr_static(value, name, None)
        yield value
