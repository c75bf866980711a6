"""Digests of code objects: equal in processes that compiled equal source, whatever their hash seed.

Bytecode, constants and names decide; where the source lies and which lines it has do not.
"""

from __future__ import annotations

import hashlib
import marshal
from operator import attrgetter
from types import CodeType, EllipsisType
from typing import Any

_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes, EllipsisType})
# What Dynamo puts into code; known by name, so that torch is not imported.
_OF_TORCH = frozenset(("torch", name) for name in ("dtype", "device", "layout", "memory_format", "Size"))
# All that a code object is made of but constants, file and lines.
_facts = attrgetter(
    "co_qualname", "co_name", "co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_nlocals", "co_stacksize",
    "co_flags", "co_code", "co_exceptiontable", "co_names", "co_varnames", "co_cellvars", "co_freevars",
)  # fmt: skip
# By address, with what keeps it alive: as keys, code objects are compared by content.
_known: dict[int, tuple[CodeType, str]] = {}


def digest_of_code(code: CodeType) -> str:
    """The sha256 of what code does, nested functions included, in hex.

    Raises:
        ValueError: it holds a constant that no compiler puts there.
    """
    known = _known.get(id(code))
    if known is None:
        content = _as_bytes((*_facts(code), _constants(code.co_consts)))
        known = _known[id(code)] = code, hashlib.sha256(content).hexdigest()
    return known[1]


def _as_bytes(value: Any) -> bytes:
    # Later versions tell strings that are interned from others, and values that are one object from equal ones.
    return marshal.dumps(value, 2)


def _constants(values: tuple[object, ...]) -> tuple[object, ...]:
    """Constants of which those that are not plain are tuples, which begin with their kind."""
    if _PLAIN.issuperset(map(type, values)):
        return values
    return tuple([each if type(each) in _PLAIN else _constant(each) for each in values])


def _constant(value: object) -> object:
    if type(value) in _PLAIN:
        return value
    if isinstance(value, CodeType):
        return "code", digest_of_code(value)
    if (type(value).__module__, type(value).__name__) in _OF_TORCH:
        return "torch", repr(value)
    match value:
        case tuple():
            return "tuple", *_constants(value)
        case frozenset():
            # In the order of hashes, which differ from process to process.
            return "frozenset", *sorted(map(_as_bytes, map(_constant, value)))
        case slice():
            return "slice", *_constants((value.start, value.stop, value.step))
    raise ValueError(f"a constant of type {type(value).__module__}.{type(value).__qualname__}")
