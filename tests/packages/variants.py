"""A variant with something of everything that one may hold."""

from __future__ import annotations

from types import CodeType
from typing import Any

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
    SizeRecord,
    SourceRecord,
    TorchConstant,
    TypeRecord,
    Variant,
)
from compilefarm.core.keys import Part
from compilefarm.packages.packing import Found, ProgramRecord

LOOKUP = Lookup(module="models", qualified_name="Model.forward", code_digest="ab" * 32, settings="mode=default")


def record_of(code: CodeType) -> CodeRecord:
    """A code object, field by field."""
    fields: dict[str, Any] = {name: getattr(code, f"co_{name}") for name in CodeRecord.__dataclass_fields__}
    return CodeRecord(**fields | {"consts": tuple(map(constant, code.co_consts))})


def constant(value: Any) -> Constant:
    return record_of(value) if isinstance(value, CodeType) else value


def generated(x: int) -> Any:
    """Like code that Dynamo generates: it calls what it finds among globals."""
    try:
        (result,) = __compiled_fn_1(x, [n for n in range(x) if n in {1, 2}])  # type: ignore[name-defined]  # noqa: F821
    except ValueError:
        return -(2**70), 1.5j, b"\0", ..., frozenset({"a", ("b", None)})
    return lambda: result


def variant(*, program: str = "p1", expected: str = "f" * 64) -> Variant:
    return Variant(
        code=record_of(generated.__code__),
        globals=(
            GlobalRecord(name="__compiled_fn_1", kind=GlobalKind.PROGRAM, program=program),
            GlobalRecord(name="__import_torch", kind=GlobalKind.MODULE, module="torch"),
            GlobalRecord(name="__resume", kind=GlobalKind.FUNCTION, code=record_of(record_of.__code__)),
        ),
        sources=(
            SourceRecord(kind="LocalSource", fields=(Field(name="local_name", value="self"),)),
            SourceRecord(
                kind="AttrSource", fields=(Field(name="base", source=0), Field(name="member", value="weight"))
            ),
        ),
        types=(TypeRecord(source=1, expected="torch.nn.Parameter"),),
        guards=(
            GuardRecord(
                kind="EQUALS_MATCH",
                source=1,
                arguments=(
                    Field(
                        name="value",
                        value=(
                            1,
                            -1.5,
                            True,
                            2**80,
                            float("inf"),
                            TorchConstant(kind="dtype", text="torch.bfloat16"),
                            ClassConstant(module="torch.nn.modules.linear", qualified_name="Linear"),
                        ),
                    ),
                ),
                expected=expected,
            ),
        ),
        shape_expressions=("L['x'].size()[0] >= 2",),
        sizes=(SizeRecord(source=1, size=(None, 4, -1), stride=(0, None)),),
        key_order=(0,),
        aliases=(AliasRecord(kind="same", first=(0, 1), second=()),),
        dependencies=(DependencyRecord(kind=DependencyKind.VARIABLE, module="", name="HOME", expected="set"),),
    )


def found(*, program: str = "p1", expected: str = "f" * 64, place: str = "") -> Found:
    """What Dynamo found, under a key of its own for each place."""
    return Found(
        lookup=LOOKUP,
        variant=variant(program=program, expected=expected),
        programs={program: ProgramRecord(request=b"request", messages=("not finite",))},
        key_parts=(Part(name="place", digest=place),),
    )
