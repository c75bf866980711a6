"""Compares what another process found for a frame with what a trace of this process finds for the same frame.

Names of programs differ from process to process, and so do those of functions after a graph break and of local
variables of generated code; they are compared by their order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

from compilefarm.core.dynamo_packages import CodeRecord, Constant, GlobalKind, GlobalRecord, SizeRecord, Variant

# What must hold, in the words of reports.
_CONDITIONS: Mapping[str, str] = {
    "sources": "what is guarded",
    "guards": "guards",
    "types": "classes of guarded values",
    "shape_expressions": "conditions on sizes",
    "sizes": "sizes",
    "key_order": "dictionaries whose order counts",
    "aliases": "what is one object",
    "dependencies": "what it rests on without a guard",
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a comparison has found.

    Attributes:
        outcome: "skipped" where both cannot be compared, which proves nothing.
        detail: what differs, or why it was skipped; empty otherwise.
    """

    outcome: Literal["same", "differs", "skipped"]
    detail: str = ""


def compare(stored: Variant, traced: Variant) -> Finding:
    """Compares a variant that holds for a frame with a trace of that frame."""
    # A first trace is for the sizes that it sees, and one that follows others for any.
    if _dynamic(stored.sizes) != _dynamic(traced.sizes):
        return Finding(outcome="skipped", detail="one of both is for any size")
    difference = _difference(stored, traced)
    return Finding(outcome="differs", detail=difference) if difference else Finding(outcome="same")


def _difference(stored: Variant, traced: Variant) -> str:
    if _programs(stored) != _programs(traced):
        return "graphs"
    for name, words in _CONDITIONS.items():
        if getattr(stored, name) != getattr(traced, name):
            return words
    return "" if _codes(stored) == _codes(traced) else "generated code"


def _dynamic(sizes: Sequence[SizeRecord]) -> list[list[bool]]:
    return [[each is None for each in (*record.size, *record.stride)] for record in sizes]


def _programs(variant: Variant) -> list[str]:
    return [each.program for each in _ordered(variant) if each.kind is GlobalKind.PROGRAM]


def _ordered(variant: Variant) -> list[GlobalRecord]:
    """The names among the globals in the order in which the generated code has them; those of modules are no names of
    one process."""
    own = {each.name: each for each in variant.globals if each.kind is not GlobalKind.MODULE}
    first = [own[name] for name in variant.code.names if name in own]
    return [*first, *(each for name, each in own.items() if name not in variant.code.names)]


def _codes(variant: Variant) -> list[CodeRecord]:
    ordered = _ordered(variant)
    names = {each.name: f"{each.kind.value} {number}" for number, each in enumerate(ordered)}
    codes = [variant.code, *(each.code for each in ordered if each.code is not None)]
    return [_normalized(code, names) for code in codes]


def _normalized(code: CodeRecord, names: Mapping[str, str]) -> CodeRecord:
    """Code without what a process or a source file has given it."""
    return dataclasses.replace(
        code,
        consts=tuple(_constant(each, names) for each in code.consts),
        names=tuple(names.get(name, name) for name in code.names),
        varnames=code.varnames[: code.argcount + code.kwonlyargcount],
        filename="",
        name=names.get(code.name, code.name),
        qualname=names.get(code.qualname, code.qualname),
        firstlineno=0,
        linetable=b"",
    )


def _constant(constant: Constant, names: Mapping[str, str]) -> Constant:
    if isinstance(constant, CodeRecord):
        return _normalized(constant, names)
    if isinstance(constant, tuple):
        return tuple(_constant(each, names) for each in constant)
    return constant
