"""Canaries of torch_internals/dynamo_questions.py."""

from __future__ import annotations

import importlib.util
import inspect
import math
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

from compilefarm.reuse.code_objects import codes_within
from compilefarm.torch_internals.dynamo_questions import (
    NAMES_OF_FRAMES,
    watching_addresses,
    watching_builtins,
    watching_constant_results,
    watching_lines,
    watching_modules,
    watching_orders,
    watching_packages,
    watching_reads,
    watching_storages,
    watching_texts,
    watching_twice_reached,
)
from compilefarm.torch_internals.dynamo_sources import Source, kind_of


def _asks(x: torch.Tensor) -> torch.Tensor:
    own = math
    has = hasattr(own, "nothing of the kind") or isinstance(x, (int, str))
    return x * own.pi if not has else x + hash("abc")


def test_a_trace_is_heard_ask_modules_and_builtins() -> None:
    read: list[Any] = []
    called: list[Any] = []
    torch.compiler.reset()
    with watching_modules(lambda *asked: read.append(asked)), watching_builtins(lambda *asked: called.append(asked)):
        torch.compile(_asks, backend="eager")(torch.ones(2))
    assert {(math, "nothing of the kind"), (math, "pi")} <= set(read)
    asked = [each for each in called if each[0] is isinstance]
    assert asked[0] == (isinstance, _asks.__code__, [(int, str)])
    read.clear()
    torch.compiler.reset()
    torch.compile(_asks, backend="eager")(torch.ones(2))
    assert read == []


@torch._dynamo.assume_constant_result
def _assumed(number: int, *, negative: bool = False) -> int:
    return -number if negative else number


def test_results_that_are_taken_for_constants_are_heard_with_their_calls() -> None:
    heard: list[Any] = []
    torch.compiler.reset()
    with watching_constant_results(lambda *call: heard.append(call)):
        found = torch.compile(lambda x: x * _assumed(2, negative=True), backend="eager")(torch.ones(2))
    assert found.tolist() == [-2.0, -2.0]
    assert [(each[1:]) for each in heard if each[0] is _assumed] == [((2,), {"negative": True}, -2)]


def test_what_objects_say_of_themselves_is_heard() -> None:
    heard: list[str] = []
    torch.compiler.reset()
    with watching_texts(heard.append):
        torch.compile(lambda x: x * len(repr(_asks)), backend="eager")(torch.ones(2))
    assert repr(_asks) in heard


def _catches(x: torch.Tensor) -> torch.Tensor:
    try:
        raise ValueError
    except ValueError as error:
        return x + (error.__traceback__.tb_lineno if error.__traceback__ is not None else 0)


def test_a_trace_is_heard_ask_where_an_exception_was_raised() -> None:
    heard: list[bool] = []
    torch.compiler.reset()
    with watching_lines(lambda: heard.append(True)):
        found = torch.compile(_catches, backend="eager", fullgraph=True)(torch.ones(2))
    assert heard
    assert torch.equal(found, _catches(torch.ones(2)))


class _Held:
    def __init__(self, own: object) -> None:
        self.own = own


def _asks_for_addresses(x: torch.Tensor, held: _Held) -> torch.Tensor:
    return x * (2 if id(held) == id(held.own) else 3)


def test_objects_whose_addresses_are_asked_for_are_heard() -> None:
    heard: list[Source] = []
    torch.compiler.reset()
    with watching_addresses(heard.append):
        found = torch.compile(_asks_for_addresses, backend="eager")(torch.ones(2), _Held(_Held(None)))
    assert found.tolist() == [3.0, 3.0]
    assert {kind_of(each) for each in heard} == {"LocalSource", "AttrSource"}


_TENSOR = torch.ones(2)


def _adds_its_own(x: torch.Tensor) -> torch.Tensor:
    return x + _TENSOR


def test_an_object_among_arguments_and_globals_is_told() -> None:
    found: list[tuple[Source, Source]] = []
    torch.compiler.reset()
    with watching_twice_reached(lambda *places: found.append(places)):
        torch.compile(_adds_its_own, backend="eager")(_TENSOR)
    assert {frozenset(map(kind_of, each)) for each in found} == {frozenset({"LocalSource", "GlobalSource"})}
    found.clear()
    torch.compiler.reset()
    with watching_twice_reached(lambda *places: found.append(places)):
        torch.compile(_adds_its_own, backend="eager")(torch.ones(2))
    assert found == []


def _looks_for_a_package(x: torch.Tensor) -> torch.Tensor:
    return x * (2 if importlib.util.find_spec("nothing_of_the_kind") is None else 3)


def _looks_within_a_package(x: torch.Tensor) -> torch.Tensor:
    return x * (2 if importlib.util.find_spec("nothing_of_the_kind", package="importlib") is None else 3)


def test_what_a_trace_looks_for_by_keyword_is_heard_in_order() -> None:
    asked: list[Any] = []
    torch.compiler.reset()
    with watching_packages(lambda *question: asked.append(question)):
        torch.compile(_looks_within_a_package, backend="eager")(torch.ones(2))
    assert (importlib.util.find_spec, ["nothing_of_the_kind", "importlib"]) in asked


def test_a_trace_is_heard_look_for_a_package() -> None:
    asked: list[Any] = []
    torch.compiler.reset()
    with watching_packages(lambda *question: asked.append(question)):
        torch.compile(_looks_for_a_package, backend="eager")(torch.ones(2))
    assert (importlib.util.find_spec, ["nothing_of_the_kind"]) in asked


def _enters(x: torch.Tensor, mode: torch.overrides.TorchFunctionMode) -> torch.Tensor:
    with mode:
        return x + 1


def test_what_a_trace_looks_at_is_heard_guarded_or_not() -> None:
    heard: dict[int, set[str]] = {}
    torch.compiler.reset()
    with watching_reads(lambda attempt, source: heard.setdefault(id(attempt), set()).add(source.name)):
        torch.compile(_enters, backend="eager")(torch.ones(2), torch.overrides.BaseTorchFunctionMode())
    assert {"L['x']", "L['mode']"} <= list(heard.values())[-1]


def _asks_for_a_storage(x: torch.Tensor) -> torch.Tensor:
    return x * x.untyped_storage().size()


def test_a_trace_is_heard_look_at_a_storage() -> None:
    heard: list[None] = []
    torch.compiler.reset()
    with watching_storages(lambda: heard.append(None)):
        found = torch.compile(_asks_for_a_storage, backend="eager")(torch.ones(2))
    assert found.tolist() == [8.0, 8.0]
    assert heard


_NAMES = frozenset({"two", "three", "four"})


@pytest.mark.parametrize(
    ("asks", "is_heard"),
    [
        (lambda x: x * (2 if "two" in _NAMES else 3), False),
        (lambda x: x * len(next(iter(_NAMES))), True),
        (lambda x: x * len(",".join(_NAMES).partition(",")[0]), True),
        (lambda x: x * len(set(_NAMES).pop()), True),
        (lambda x: x * len(next(iter(_NAMES | {"one"}))), True),
    ],
)
def test_sets_that_a_trace_goes_through_are_heard(asks: Callable[[torch.Tensor], torch.Tensor], is_heard: bool) -> None:
    heard: list[Any] = []
    torch.compiler.reset()
    with watching_orders(heard.append):
        torch.compile(asks, backend="eager")(torch.ones(2))
    assert bool(heard) is is_heard
    heard.clear()
    torch.compiler.reset()
    torch.compile(asks, backend="eager")(torch.ones(2))
    assert heard == []


def _made() -> set[str]:
    made = set()
    for name in ("two", "three", "four"):
        made.add(name)
    return made


def test_what_python_makes_of_a_set_that_a_trace_makes_is_heard_and_has_no_source() -> None:
    heard: list[Any] = []
    torch.compiler.reset()
    with watching_orders(heard.append):
        torch.compile(lambda x: x * f"{_made()}".index("two"), backend="eager")(torch.ones(2))
    assert heard
    assert set(heard) == {None}


def test_whole_numbers_have_one_order() -> None:
    heard: list[Any] = []
    torch.compiler.reset()
    with watching_orders(heard.append):
        torch.compile(lambda x: x.sum(dim=list(set(range(2)) | {1})), backend="eager")(torch.ones(2, 2))
    assert not heard


# Torch 2.11 has other names for some: what asks by these is then taken to ask for an order.
_SINCE_2_12 = {
    "_new_set", "_operand_keys", "get_real_python_backed_value", "isdisjoint", "sq_length_impl", "tp_richcompare_impl",
    "vt_identity_compare",
}  # fmt: skip


def test_functions_by_whose_names_it_is_told_what_asks_for_a_set_are_dynamos() -> None:
    modules = [module for name, module in sys.modules.items() if name.startswith("torch._dynamo.")]
    found = [value for module in modules for value in vars(module).values()]
    found += [value for kind in found if isinstance(kind, type) for value in vars(kind).values()]
    functions = (value.fget if isinstance(value, property) else inspect.unwrap(value) for value in found)
    codes = (each.__code__ for each in functions if isinstance(each, types.FunctionType))
    defined = {code.co_name for outer in codes for code in codes_within(outer)}
    is_old = torch.torch_version.TorchVersion(torch.__version__) < "2.12"
    assert NAMES_OF_FRAMES - defined == (_SINCE_2_12 if is_old else set())
