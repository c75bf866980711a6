"""Digests of code objects: equal in processes that compiled equal source, whatever their hash seed.

Bytecode, constants and names decide; where the source lies and which lines it has do not.
"""

from __future__ import annotations

import hashlib
from types import CodeType


def digest_of_code(code: CodeType) -> str:
    """The sha256 of what code does, nested functions included, in hex."""
    return hashlib.sha256(_content_of(code).encode("utf-8", "surrogatepass")).hexdigest()


def _content_of(code: CodeType) -> str:
    return repr(
        (
            code.co_qualname,
            code.co_argcount,
            code.co_posonlyargcount,
            code.co_kwonlyargcount,
            code.co_flags,
            code.co_code,
            code.co_exceptiontable,
            code.co_names,
            code.co_varnames,
            code.co_cellvars,
            code.co_freevars,
            [_constant(value) for value in code.co_consts],
        )
    )


def _constant(value: object) -> str:
    match value:
        case CodeType():
            return digest_of_code(value)
        case tuple():
            return f"tuple {[_constant(each) for each in value]}"
        case frozenset():
            # In the order of hashes, which differ from process to process.
            return f"frozenset {sorted(_constant(each) for each in value)}"
        case slice():
            return f"slice {[_constant(each) for each in (value.start, value.stop, value.step)]}"
    return f"{type(value).__name__} {value!r}"
