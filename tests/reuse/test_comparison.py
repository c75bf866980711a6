"""What a trace says of a variant: the same under other names, or what differs first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from compilefarm.core.dynamo_packages import CodeRecord, SizeRecord, Variant
from compilefarm.reuse.comparison import Finding, compare
from tests.packages.variants import variant


def with_code(change: Callable[[CodeRecord], CodeRecord]) -> Callable[[Variant], Variant]:
    return lambda given: replace(given, code=change(given.code))


def renamed(given: Variant) -> Variant:
    """As another process calls it, whose sources lie elsewhere."""
    names = {"__compiled_fn_1": "__compiled_fn_7_ab12"}
    return replace(
        given,
        globals=tuple(replace(each, name=names.get(each.name, each.name)) for each in given.globals),
        code=replace(
            given.code,
            names=tuple(names.get(name, name) for name in given.code.names),
            varnames=(*given.code.varnames[:1], *(f"{name}_2" for name in given.code.varnames[1:])),
            filename="elsewhere.py",
            firstlineno=7,
            linetable=b"",
        ),
    )


def test_names_and_lines_of_a_process_make_no_difference() -> None:
    assert compare(variant(), renamed(variant())) == Finding(outcome="same")


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        (lambda _: variant(program="p2"), "graphs"),
        (lambda given: replace(given, sources=given.sources[:1]), "what is guarded"),
        (lambda _: variant(expected="0" * 64), "guards"),
        (lambda given: replace(given, guards=()), "guards"),
        (lambda given: replace(given, types=()), "classes of guarded values"),
        (lambda given: replace(given, shape_expressions=()), "conditions on sizes"),
        (lambda given: replace(given, key_order=()), "dictionaries whose order counts"),
        (lambda given: replace(given, aliases=()), "what is one object"),
        (lambda given: replace(given, dependencies=()), "what it rests on without a guard"),
        (with_code(lambda code: replace(code, code=code.code[:-2])), "generated code"),
        (with_code(lambda code: replace(code, consts=(*code.consts[:-1], 2))), "generated code"),
        (with_code(lambda code: replace(code, names=(*code.names[:-1], "other"))), "generated code"),
    ],
)
def test_what_differs_is_named(change: Callable[[Variant], Variant], difference: str) -> None:
    for first, second in ((variant(), change(variant())), (change(variant()), variant())):
        assert compare(first, second) == Finding(outcome="differs", detail=difference)


def test_a_variant_for_any_size_proves_nothing_of_one_for_one_size() -> None:
    static = replace(variant(), sizes=(SizeRecord(source=1, size=(3, 4, -1), stride=(0, 2)),))
    assert compare(static, variant()).outcome == "skipped"
