"""Packages as bytes: they come back as they were, and what is no package is refused before anything is made of it."""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import CodeType, FunctionType
from typing import Any

import pytest

from compilefarm.core.dynamo_packages import CodeRecord, Field, GuardRecord
from compilefarm.packages.code_checks import InvalidPackage, check_code, make_code
from compilefarm.packages.frame_decoding import decode_constant
from compilefarm.packages.frame_encoding import Unsayable, encode_constant
from compilefarm.packages.packing import Found, ProgramRecord, name_of, pack, unpack
from compilefarm.v1 import package_pb2 as wire
from tests.packages.variants import LOOKUP, constant, found, generated, record_of, variant

CONTENT = pack(found())


def changed(change: Callable[[wire.Package], object]) -> bytes:
    """The content of a package in which something was changed."""
    package = wire.Package.FromString(zlib.decompress(CONTENT))
    change(package)
    return zlib.compress(package.SerializeToString())


def codes_of(module: str) -> Iterator[CodeType]:
    """All code of a module of Python's, functions within functions included."""
    waiting: list[Any] = [
        function.__code__
        for value in vars(importlib.import_module(module)).values()
        for function in (value, *(vars(value).values() if isinstance(value, type) else ()))
        if isinstance(function, FunctionType)
    ]
    while waiting:
        code = waiting.pop()
        yield code
        waiting += [each for each in code.co_consts if isinstance(each, CodeType)]


def test_a_package_comes_back_as_it_was() -> None:
    assert unpack(CONTENT) == found()
    assert unpack(pack(unpack(CONTENT))) == found()


@pytest.mark.parametrize("module", ["asyncio.base_events", "dataclasses", "inspect", "typing", "contextlib"])
def test_code_comes_back_as_it_was(module: str) -> None:
    codes = list(codes_of(module))
    assert len(codes) > 20
    for code in codes:
        value = decode_constant(wire.FrameConstant.FromString(encode_constant(constant(code)).SerializeToString()))
        assert isinstance(value, CodeRecord)
        made = check_code(value)
        assert made == code
        assert (made.co_linetable, made.co_exceptiontable, made.co_stacksize, made.co_filename) == (
            code.co_linetable, code.co_exceptiontable, code.co_stacksize, code.co_filename
        )  # fmt: skip


def test_code_that_came_runs() -> None:
    value = decode_constant(encode_constant(record_of(generated.__code__)))
    assert isinstance(value, CodeRecord)
    function = FunctionType(
        make_code(value), {"__compiled_fn_1": lambda x, numbers: (x + sum(numbers),), "range": range}
    )
    assert function(4)() == 7


@pytest.mark.parametrize(
    "value",
    [object(), [1], {"a": 1}, {1}, "\ud800", type("Text", (str,), {})("a"), type("Number", (int,), {})(1), (1, [2])],
    ids=lambda value: type(value).__name__,
)
def test_a_constant_that_cannot_be_said_is_no_package(value: Any) -> None:
    guard = GuardRecord(kind="EQUALS_MATCH", source=0, arguments=(Field(name="value", value=value),), expected="")
    with pytest.raises(Unsayable, match="no constant that a package may hold"):
        pack(replace(found(), variant=replace(variant(), guards=(guard,))))


def test_a_package_that_is_too_large_is_none() -> None:
    import os

    with pytest.raises(Unsayable, match="bytes, packed"):
        pack(replace(found(), programs={"p1": ProgramRecord(request=os.urandom(4_000_000))}))


def test_whatever_is_cut_off_is_no_package() -> None:
    for length in range(0, len(CONTENT), 7):
        with pytest.raises(InvalidPackage):
            unpack(CONTENT[:length])
    with pytest.raises(InvalidPackage, match="no end"):
        unpack(CONTENT + b"\0")


def test_whatever_is_edited_is_refused_or_another_package() -> None:
    content = zlib.decompress(CONTENT)
    for place in range(0, len(content), 5):
        for bit in (1, 128):
            edited = content[:place] + bytes([content[place] ^ bit]) + content[place + 1 :]
            try:
                assert isinstance(unpack(zlib.compress(edited)), Found)
            except InvalidPackage:
                continue


def test_what_would_unpack_to_more_than_a_package_is_refused() -> None:
    with pytest.raises(InvalidPackage, match="larger than"):
        unpack(zlib.compress(bytes(64 * 1024 * 1024)))


DAMAGES: dict[str, tuple[str, Callable[[wire.Package], object]]] = {
    "newer": ("format 2", lambda package: setattr(package, "format", 2)),
    "of a newer release": ("it is newer", lambda package: package.MergeFromString(b"\xf8\x07\x01")),
    "of another interpreter": ("it is for", lambda package: setattr(package, "interpreter", "cpython-39 3.9.1")),
    "a source that is not there": ("names source 7", lambda package: setattr(package.variant.guards[0], "source", 7)),
    "a source of what comes after it": (
        "names source 1", lambda package: setattr(package.variant.sources[1].fields[0], "source", 1)
    ),
    "an argument without content": (
        "says nothing", lambda package: package.variant.guards[0].arguments[0].ClearField("value")
    ),
    "a constant of a new kind": (
        "does not know", lambda package: package.variant.guards[0].arguments[0].value.ClearField("tuple")
    ),
    "a dependency of a new kind": (
        "does not know", lambda package: setattr(package.variant.dependencies[0], "kind", "weather")
    ),
    "a global of a new kind": ("does not know", lambda package: setattr(package.variant.globals[0], "kind", "eval")),
    "a global without a name": (
        "no name of a global", lambda package: setattr(package.variant.globals[0], "name", "")
    ),
    "a program that is missing": ("other programs", lambda package: package.programs.pop()),
    "a program too many": ("other programs", lambda package: package.programs.add(name="p2")),
    "code without bytes": ("code of 0 bytes", lambda package: cut(package.variant.code, None)),
    "code that is cut off": ("bytes is none", lambda package: cut(package.variant.code, 3)),
    "code that is cut off behind an instruction": (
        "ends within",
        lambda package: setattr(package.variant.code, "code", package.variant.code.code + loading_global()),
    ),
    "code without its constants": ("contradicts itself", lambda package: package.variant.code.ClearField("consts")),
    "code without its names": ("contradicts itself", lambda package: package.variant.code.ClearField("names")),
    "code with fewer variables": ("local variables", lambda package: package.variant.code.varnames.pop()),
    "code with more arguments": ("local variables", lambda package: setattr(package.variant.code, "argcount", 90)),
    "code with a negative number": (
        "local variables", lambda package: setattr(package.variant.code, "kwonlyargcount", -1)
    ),
    "a stack without a bound": ("a stack of", lambda package: setattr(package.variant.code, "stacksize", 2**30)),
    "an instruction that there is not": (
        "no instruction", lambda package: replace_code(package.variant.code, b"\xfe\0")
    ),
    "a jump to nowhere": ("jumps", lambda package: replace_code(package.variant.code, jump(2))),
    "a name with a line break": ("no name", lambda package: package.variant.code.names.__setitem__(0, "a\nb")),
    "a constant that torch does not have": (
        "of torch",
        lambda package: setattr(package.variant.guards[0].arguments[0].value.tuple.values[5].torch, "kind", "up"),
    ),
    "an integer of too many digits": (
        "too many digits",
        lambda package: setattr(package.variant.guards[0].arguments[0].value, "large_integer", "1" * 2000),
    ),
    "constants too deep within each other": (
        "too deep", lambda package: package.variant.guards[0].arguments[0].value.CopyFrom(nested(40))
    ),
}  # fmt: skip


def cut(code: wire.FrameCode, count: int | None) -> None:
    code.code = code.code[:-count] if count else b""


def replace_code(code: wire.FrameCode, instructions: bytes) -> None:
    code.code = instructions + code.code[len(instructions) :]


def loading_global() -> bytes:
    """An instruction without what follows it for the interpreter's own use."""
    import dis

    return bytes([dis.opmap["LOAD_GLOBAL"], 0])


def jump(units: int) -> bytes:
    """A jump into what follows an instruction for the interpreter's own use, or beyond the end."""
    import dis

    return bytes([dis.opmap["EXTENDED_ARG"], 200, dis.opmap["JUMP_FORWARD"], units])


def nested(depth: int) -> wire.FrameConstant:
    value = wire.FrameConstant(none=True)
    for _ in range(depth):
        value = wire.FrameConstant(tuple=wire.FrameConstants(values=[value]))
    return value


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_no_package_says_is_refused_with_the_reason(damage: str) -> None:
    reason, change = DAMAGES[damage]
    with pytest.raises(InvalidPackage, match=reason):
        unpack(changed(change))


def test_packages_that_say_the_same_have_one_name() -> None:
    name = name_of(found(), key_id="a")
    assert name_of(found(program="p9"), key_id="a") == name
    others = [found(expected="0"), replace(found(), lookup=replace(LOOKUP, settings="mode=reduce-overhead"))]
    assert len({name, name_of(found(), key_id="b"), *(name_of(each, key_id="a") for each in others)}) == 4
