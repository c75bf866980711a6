"""Variants of frames as messages (v1/package.proto)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import EllipsisType

from compilefarm.core.dynamo_packages import (
    ClassConstant,
    CodeRecord,
    Constant,
    Field,
    GlobalRecord,
    Lookup,
    NamespaceConstant,
    SizeRecord,
    TorchConstant,
    Variant,
)
from compilefarm.v1 import package_pb2 as wire

# What protobuf takes for an integer.
_INTEGERS = range(-(2**63), 2**63)


class Unsayable(Exception):
    """Something of a variant has no form on the wire; the message names it."""


def encode_lookup(lookup: Lookup) -> wire.FrameLookup:
    """A code object, and how torch.compile was called."""
    return wire.FrameLookup(
        module=lookup.module,
        qualified_name=lookup.qualified_name,
        code_digest=lookup.code_digest,
        settings=lookup.settings,
    )


def encode_variant(variant: Variant) -> wire.FrameVariant:
    """A variant.

    Raises:
        Unsayable: it holds a constant that is none of those that packages may hold.
    """
    return wire.FrameVariant(
        code=_code(variant.code),
        globals=map(_global, variant.globals),
        sources=[wire.FrameSource(kind=each.kind, fields=_fields(each.fields)) for each in variant.sources],
        types=[wire.FrameType(source=each.source, expected=each.expected) for each in variant.types],
        guards=[
            wire.FrameGuard(
                kind=each.kind, source=each.source, arguments=_fields(each.arguments), expected=each.expected
            )
            for each in variant.guards
        ],
        shape_expressions=variant.shape_expressions,
        sizes=map(_sizes, variant.sizes),
        key_order=variant.key_order,
        aliases=[wire.FrameAlias(kind=each.kind, first=each.first, second=each.second) for each in variant.aliases],
        dependencies=[
            wire.FrameDependency(kind=each.kind.value, module=each.module, name=each.name, expected=each.expected)
            for each in variant.dependencies
        ],
    )


def encode_constant(value: Constant) -> wire.FrameConstant:
    """A constant.

    Raises:
        Unsayable: it is of another type, also by being of a subclass.
    """
    kind = type(value)
    match value:
        case None:
            return wire.FrameConstant(none=True)
        case bool():
            return wire.FrameConstant(boolean=value)
        case EllipsisType():
            return wire.FrameConstant(ellipsis=True)
        case int() if kind is int:
            return _integer(value)
        case float() if kind is float:
            return wire.FrameConstant(real=value)
        case complex() if kind is complex:
            return wire.FrameConstant(complex=wire.FrameComplex(real=value.real, imaginary=value.imag))
        case str() if kind is str:
            return wire.FrameConstant(text=_text(value))
        case bytes() if kind is bytes:
            return wire.FrameConstant(content=value)
        case tuple() if kind is tuple:
            return wire.FrameConstant(tuple=wire.FrameConstants(values=map(encode_constant, value)))
        case frozenset() if kind is frozenset:
            return wire.FrameConstant(frozenset=wire.FrameConstants(values=map(encode_constant, value)))
        case TorchConstant():
            return wire.FrameConstant(torch=wire.FrameTorchConstant(kind=value.kind, text=value.text))
        case ClassConstant():
            return wire.FrameConstant(a_class=wire.FrameClass(module=value.module, qualified_name=value.qualified_name))
        case NamespaceConstant():
            return wire.FrameConstant(namespace=value.module)
        case CodeRecord():
            return wire.FrameConstant(code=_code(value))
    raise Unsayable(f"a {kind.__module__}.{kind.__qualname__} is no constant that a package may hold")


def _integer(value: int) -> wire.FrameConstant:
    return wire.FrameConstant(integer=value) if value in _INTEGERS else wire.FrameConstant(large_integer=f"{value:x}")


def _text(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Unsayable("a text with half of a character is no constant that a package may hold") from None
    return value


def _code(code: CodeRecord) -> wire.FrameCode:
    return wire.FrameCode(
        argcount=code.argcount,
        posonlyargcount=code.posonlyargcount,
        kwonlyargcount=code.kwonlyargcount,
        nlocals=code.nlocals,
        stacksize=code.stacksize,
        flags=code.flags,
        code=code.code,
        consts=map(encode_constant, code.consts),
        names=code.names,
        varnames=code.varnames,
        filename=code.filename,
        name=code.name,
        qualname=code.qualname,
        firstlineno=code.firstlineno,
        linetable=code.linetable,
        exceptiontable=code.exceptiontable,
        freevars=code.freevars,
        cellvars=code.cellvars,
    )


def _global(given: GlobalRecord) -> wire.FrameGlobal:
    return wire.FrameGlobal(
        name=given.name,
        kind=given.kind.value,
        module=given.module,
        program=given.program,
        code=None if given.code is None else _code(given.code),
    )


def _fields(fields: Iterable[Field]) -> Iterator[wire.FrameField]:
    for field in fields:
        if field.source is not None:
            yield wire.FrameField(name=field.name, source=field.source)
        else:
            yield wire.FrameField(name=field.name, value=encode_constant(field.value))


def _sizes(sizes: SizeRecord) -> wire.FrameSizes:
    return wire.FrameSizes(source=sizes.source, size=map(_number, sizes.size), stride=map(_number, sizes.stride))


def _number(value: int | None) -> wire.FrameNumber:
    return wire.FrameNumber() if value is None else wire.FrameNumber(value=value)
