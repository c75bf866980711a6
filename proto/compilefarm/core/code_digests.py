"""Digests of code objects: equal in processes that compiled equal source, whatever their hash seed.

Bytecode, constants and names decide; where the source lies and which lines it has do not.
"""

from __future__ import annotations

import hashlib
from operator import attrgetter
from types import CodeType, EllipsisType

_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes, EllipsisType})
# What Dynamo puts into code; known by name, so that torch is not imported.
_OF_TORCH = frozenset(("torch", name) for name in ("dtype", "device", "layout", "memory_format"))
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
        content = f"{_facts(code)!r}{_constants(code.co_consts)}"
        known = _known[id(code)] = code, hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()
    return known[1]


def _constants(values: tuple[object, ...]) -> str:
    return repr(values) if _PLAIN.issuperset(map(type, values)) else f"({','.join(map(_constant, values))})"


def _constant(value: object) -> str:
    match value:
        case CodeType():
            return f"code {digest_of_code(value)}"
        case tuple():
            return f"tuple {_constants(value)}"
        case frozenset():
            # In the order of hashes, which differ from process to process.
            return f"frozenset {sorted(map(_constant, value))}"
        case slice():
            return f"slice {_constants((value.start, value.stop, value.step))}"
    if (type(value).__module__, type(value).__name__) in _OF_TORCH:
        return f"torch {value!r}"
    if type(value) not in _PLAIN:
        raise ValueError(f"a constant of type {type(value).__module__}.{type(value).__qualname__}")
    return f"{type(value).__name__} {value!r}"
