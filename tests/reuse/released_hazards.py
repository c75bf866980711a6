"""Cases of tests/reuse/hazards.py about what only seems to be of torch or of the standard library, and about what a
program has replaced of these, where Dynamo calls functions and does not trace them."""

from __future__ import annotations

import abc
import dataclasses
import functools
import heapq
import statistics
import sys
import textwrap
import types
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch.utils import _pytree as pytree

from tests.reuse.cases import X, case, patched, unsaid

_HERE = sys.modules[__name__]
_FACTOR = 2
_SOURCE = """
_FACTOR_OF_HAZARDS = 2
def _answer_of_hazards():
    return _FACTOR_OF_HAZARDS
"""


class Held:
    def __init__(self, *parts: float) -> None:
        self.parts = parts


def _indexed(answer: Callable[[], Any]) -> Callable[[torch.Tensor], torch.Tensor]:
    class Indexed:
        def __class_getitem__(cls, _: Any) -> Any:
            return answer()

    return lambda x: x * Indexed[0]  # type: ignore[misc]


def _executed(scope: dict[str, Any]) -> dict[str, Any]:
    exec(_SOURCE, scope)  # as libraries do that write functions
    return scope


_OF_NO_MODULE = _executed({})
_SHIM = types.ModuleType("torch.a_shim_of_hazards")
sys.modules[_SHIM.__name__] = _SHIM
_answer_of_no_module = _OF_NO_MODULE["_answer_of_hazards"]
_answer_within_torch = _executed(vars(torch.nn.functional))["_answer_of_hazards"]
_answer_of_shim = _executed(vars(_SHIM))["_answer_of_hazards"]


@case
def a_called_function_of_no_module(changed: bool) -> Iterator[Any]:
    with mock.patch.dict(_OF_NO_MODULE, {"_FACTOR_OF_HAZARDS": 3 if changed else 2}):
        yield _indexed(lambda: int(_answer_of_no_module())), (X,)


@case
def a_called_function_that_was_put_into_a_module_of_torch(changed: bool) -> Iterator[Any]:
    with patched(torch.nn.functional, "_FACTOR_OF_HAZARDS", 3, when=changed):
        yield _indexed(lambda: int(_answer_within_torch())), (X,)


@case
def a_called_function_of_a_module_that_was_put_among_those_of_torch(changed: bool) -> Iterator[Any]:
    with patched(_SHIM, "_FACTOR_OF_HAZARDS", 3, when=changed):
        yield _indexed(lambda: int(_answer_of_shim())), (X,)


@case
def a_default_of_a_called_function_of_the_standard_library(changed: bool) -> Iterator[Any]:
    defaults = {"n": 10 if changed else 4, "method": "exclusive"}
    with patched(statistics.quantiles, "__kwdefaults__", defaults, when=True):
        yield _indexed(lambda: statistics.quantiles([1.0, 2.0, 6.0, 9.0])[0]), (X,)


@case
def code_of_a_called_function_of_torch(changed: bool) -> Iterator[Any]:
    def other(*shapes: tuple[int, ...]) -> tuple[int, ...]:
        return len(shapes), 9

    with patched(torch.broadcast_shapes, "__code__", other.__code__, when=changed):
        yield _indexed(lambda: torch.broadcast_shapes((2, 1), (1, 3))[1]), (X,)


@case
def a_name_within_a_module_of_the_standard_library(changed: bool) -> Iterator[Any]:
    with patched(heapq, "max", lambda *_, **__: 9, when=changed):
        yield _indexed(lambda: heapq.nlargest(1, [3, 5, 1])[0]), (X,)


@case
def a_method_within_the_standard_library(changed: bool) -> Iterator[Any]:
    with patched(textwrap.TextWrapper, "fill", lambda *_: "", when=changed):
        yield _indexed(lambda: 1 + len(textwrap.fill("some text", 5))), (X,)


# What the standard library and torch make for a program, and have for what a program gives them.
_BASE = types.new_class("_BASE", (), {}, lambda members: members.update(held=Held(2.0)))


class _Derived(_BASE):  # type: ignore[misc, valid-type]
    def __class_getitem__(cls, _: Any) -> float:
        return float(cls.held.parts[0])


@unsaid
def an_object_on_a_class_that_the_standard_library_made(changed: bool) -> Iterator[Any]:
    with patched(_BASE.held, "parts", (3.0,), when=changed):  # type: ignore[attr-defined]
        yield lambda x: x * _Derived[0], (X,)  # type: ignore[misc]


_PARTLY = types.new_class(
    "_PARTLY", (), {}, lambda members: members.update(__class_getitem__=functools.partial(lambda _: _FACTOR))
)


@case
def a_partial_function_on_a_class_that_the_standard_library_made(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "_FACTOR", 3, when=changed):
        yield lambda x: x * _PARTLY[0], (X,)  # type: ignore[index]


class _Dispatched:
    @functools.singledispatchmethod
    @classmethod
    def __class_getitem__(cls, _: Any) -> int:
        return _FACTOR


@unsaid
def an_answer_to_an_index_that_the_standard_library_dispatches(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "_FACTOR", 3, when=changed):
        yield lambda x: x * _Dispatched[0], (X,)  # type: ignore[misc]


@unsaid
def a_class_whose_hook_says_that_it_is_of_torch(changed: bool) -> Iterator[Any]:
    hook = functools.wraps(torch.nn.functional.relu)(lambda *_: _FACTOR > 2)
    kind = abc.ABCMeta("kind", (), {"__subclasshook__": classmethod(hook)})
    with patched(_HERE, "_FACTOR", 3, when=changed):
        yield lambda x, held: x + 1 if isinstance(held, kind) else x * 2, (X, Held())


pytree.register_pytree_node(Held, lambda held: (list(held.parts), None), lambda parts, _: Held(*parts))


@unsaid
def what_a_program_has_registered_with_torch(changed: bool) -> Iterator[Any]:
    node = pytree.NodeDef(Held, lambda held: ([*held.parts, 0], None), lambda parts, _: Held(*parts), None)
    with mock.patch.dict(pytree.SUPPORTED_NODES, {Held: node} if changed else {}):
        yield _indexed(lambda: len(pytree.tree_leaves([Held(1.0, 2.0)]))), (X,)


class _Layer(torch.nn.Module):
    pass


@case
def an_answer_to_an_index_that_a_program_put_on_a_class_of_torch(changed: bool) -> Iterator[Any]:
    answer = classmethod(lambda *_: _FACTOR)
    with patched(torch.nn.Module, "__class_getitem__", answer, when=True), patched(_HERE, "_FACTOR", 3, when=changed):
        yield lambda x: x * _Layer[0], (X,)  # type: ignore[misc]


@dataclasses.dataclass
class _Fields:
    first: int = 1
    second: int = 2


def _with_names_of_fields(x: torch.Tensor, held: _Fields) -> torch.Tensor:
    for field in dataclasses.fields(held):
        x = x + len(field.name)
    return x


@case
def a_kind_of_a_field_of_a_data_class(changed: bool) -> Iterator[Any]:
    field = vars(_Fields)["__dataclass_fields__"]["second"]
    with mock.patch.object(field, "_field_type", field._field_type if changed else None):
        yield _with_names_of_fields, (X, _Fields())
