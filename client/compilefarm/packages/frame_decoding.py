"""Messages (v1/package.proto) as variants of frames, checked: numbers of sources lie in the table and before what is
built on them, code is what `code_checks` takes, and kinds are known.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import TypeVar

from compilefarm.core.dynamo_packages import (
    AliasRecord,
    ClassConstant,
    CodeRecord,
    Constant,
    DependencyKind,
    DependencyRecord,
    Field,
    GlobalKind,
    GlobalRecord,
    GuardRecord,
    Lookup,
    NamespaceConstant,
    SizeRecord,
    SourceRecord,
    TorchConstant,
    TypeRecord,
    Variant,
)
from compilefarm.packages.code_checks import InvalidPackage, check_code
from compilefarm.v1 import package_pb2 as wire

# Constants, and code objects, within each other.
_DEEPEST = 32
_LONGEST_INTEGER = 1024
_KINDS_OF_TORCH = frozenset({"dtype", "device", "layout", "memory_format", "size"})
_TEXT_OF_TORCH = re.compile(r"[a-z0-9_.:]{1,80}|torch\.Size\(\[[0-9, ]{0,400}\]\)")

_Kind = TypeVar("_Kind", GlobalKind, DependencyKind)


def decode_lookup(lookup: wire.FrameLookup) -> Lookup:
    """A code object, and how torch.compile was called."""
    return Lookup(
        module=lookup.module,
        qualified_name=lookup.qualified_name,
        code_digest=lookup.code_digest,
        settings=lookup.settings,
    )


def decode_variant(variant: wire.FrameVariant) -> Variant:
    """A variant.

    Raises:
        InvalidPackage: it is none.
    """
    count = len(variant.sources)
    return Variant(
        code=_code(variant.code, depth=0),
        globals=tuple(map(_global, variant.globals)),
        # There are thousands of these three: arguments by place are passed sooner.
        sources=tuple(
            [
                SourceRecord(each.kind, _fields(each.fields, sources=number))
                for number, each in enumerate(variant.sources)
            ]
        ),
        types=tuple([TypeRecord(_source(each.source, sources=count), each.expected) for each in variant.types]),
        guards=tuple(
            [
                GuardRecord(
                    each.kind,
                    _source(each.source, sources=count),
                    _fields(each.arguments, sources=count),
                    each.expected,
                )
                for each in variant.guards
            ]
        ),
        shape_expressions=tuple(variant.shape_expressions),
        sizes=tuple(
            SizeRecord(
                source=_source(each.source, sources=count),
                size=tuple(map(_number, each.size)),
                stride=tuple(map(_number, each.stride)),
            )
            for each in variant.sizes
        ),
        key_order=_sources(variant.key_order, sources=count),
        aliases=tuple(
            AliasRecord(
                kind=each.kind,
                first=_sources(each.first, sources=count),
                second=_sources(each.second, sources=count),
            )
            for each in variant.aliases
        ),
        dependencies=tuple(
            DependencyRecord(
                kind=_kind(DependencyKind, each.kind), module=each.module, name=each.name, expected=each.expected
            )
            for each in variant.dependencies
        ),
    )


def decode_constant(constant: wire.FrameConstant, *, depth: int = 0) -> Constant:
    """A constant.

    Raises:
        InvalidPackage: it is of no known kind.
    """
    if depth > _DEEPEST:
        raise InvalidPackage("its constants lie too deep within each other")
    match constant.WhichOneof("kind"):
        case "text":
            return constant.text
        case "none":
            return None
        case "boolean":
            return constant.boolean
        case "integer":
            return int(constant.integer)
        case "large_integer":
            return _large_integer(constant.large_integer)
        case "real":
            return constant.real
        case "complex":
            return complex(constant.complex.real, constant.complex.imaginary)
        case "content":
            return constant.content
        case "ellipsis":
            return ...
        case "tuple":
            return tuple(decode_constant(each, depth=depth + 1) for each in constant.tuple.values)
        case "frozenset":
            return frozenset(decode_constant(each, depth=depth + 1) for each in constant.frozenset.values)
        case "torch":
            return _torch_constant(constant.torch)
        case "a_class":
            return ClassConstant(module=constant.a_class.module, qualified_name=constant.a_class.qualified_name)
        case "namespace":
            return NamespaceConstant(module=constant.namespace)
        case "code":
            return _code(constant.code, depth=depth + 1)
    raise InvalidPackage("it holds a constant of a kind that this release does not know")


def _torch_constant(constant: wire.FrameTorchConstant) -> TorchConstant:
    if constant.kind not in _KINDS_OF_TORCH or not _TEXT_OF_TORCH.fullmatch(constant.text):
        raise InvalidPackage(f"{constant.text[:40]!r} is no {constant.kind[:40]!r} of torch")
    return TorchConstant(kind=constant.kind, text=constant.text)


def _large_integer(digits: str) -> int:
    if len(digits) > _LONGEST_INTEGER:
        raise InvalidPackage("it holds an integer of too many digits")
    try:
        return int(digits, 16)
    except ValueError:
        raise InvalidPackage("it holds an integer that is none") from None


def _code(code: wire.FrameCode, *, depth: int) -> CodeRecord:
    record = CodeRecord(
        argcount=code.argcount,
        posonlyargcount=code.posonlyargcount,
        kwonlyargcount=code.kwonlyargcount,
        nlocals=code.nlocals,
        stacksize=code.stacksize,
        flags=code.flags,
        code=code.code,
        consts=tuple(decode_constant(each, depth=depth + 1) for each in code.consts),
        names=tuple(code.names),
        varnames=tuple(code.varnames),
        filename=code.filename,
        name=code.name,
        qualname=code.qualname,
        firstlineno=code.firstlineno,
        linetable=code.linetable,
        exceptiontable=code.exceptiontable,
        freevars=tuple(code.freevars),
        cellvars=tuple(code.cellvars),
    )
    check_code(record)
    return record


def _global(given: wire.FrameGlobal) -> GlobalRecord:
    if not given.name.isidentifier():
        raise InvalidPackage(f"{given.name[:80]!r} is no name of a global")
    return GlobalRecord(
        name=given.name,
        kind=_kind(GlobalKind, given.kind),
        module=given.module,
        program=given.program,
        code=_code(given.code, depth=0) if given.HasField("code") else None,
    )


def _kind(kinds: type[_Kind], word: str) -> _Kind:
    try:
        return kinds(word)
    except ValueError:
        raise InvalidPackage(f"it holds a {kinds.__name__} {word[:40]!r}, which this release does not know") from None


def _fields(fields: Collection[wire.FrameField], *, sources: int) -> tuple[Field, ...]:
    # Most guards have none.
    return tuple([_field(field, sources=sources) for field in fields]) if fields else ()


def _field(field: wire.FrameField, *, sources: int) -> Field:
    match field.WhichOneof("content"):
        case "source":
            return Field(field.name, None, _source(field.source, sources=sources))
        case "value":
            return Field(field.name, decode_constant(field.value))
    raise InvalidPackage(f"the argument {field.name[:40]!r} says nothing")


def _sources(numbers: Iterable[int], *, sources: int) -> tuple[int, ...]:
    return tuple(_source(number, sources=sources) for number in numbers)


def _source(number: int, *, sources: int) -> int:
    if not 0 <= number < sources:
        raise InvalidPackage(f"it names source {number}, and there are {sources} before")
    return number


def _number(number: wire.FrameNumber) -> int | None:
    return number.value if number.WhichOneof("content") else None
