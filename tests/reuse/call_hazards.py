"""Cases of tests/reuse/hazards.py about calls: results that are taken for constants, patterns and forms of types,
classes and operators that a trace looks for, objects whose addresses it asks for, breaks in functions with cells."""

from __future__ import annotations

import contextlib
import copy
import enum
import functools
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from tests.reuse import python_hazards
from tests.reuse.cases import X, case, patched, unsaid
from tests.reuse.python_hazards import Box, Calls, Function, multiplying_by_a_global

_HERE = sys.modules[__name__]

# What Dynamo calls while it traces, and keeps.

_FACTOR = 2.0


@torch._dynamo.assume_constant_result
def assumed() -> float:
    return _FACTOR


def uses_what_is_assumed(x: torch.Tensor) -> torch.Tensor:
    return x * assumed()


@case
def a_result_that_is_assumed_to_be_constant(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "_FACTOR", 3.0, when=changed):
        yield uses_what_is_assumed, (X,)


def times_a_call(x: torch.Tensor, function: Callable[[], float]) -> torch.Tensor:
    return x * function()


@case
def an_assumed_result_of_what_an_object_holds(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "_FACTOR", 3.0, when=changed):
        yield Calls(times_a_call, assumed), (X,)


@functools.lru_cache
@torch._dynamo.assume_constant_result
def assumed_sum(number: float, *, negative: bool = False) -> float:
    return number + _FACTOR * (-1 if negative else 1)


@case
def an_assumed_result_behind_a_cache(changed: bool) -> Iterator[Any]:
    assumed_sum.cache_clear()
    with patched(_HERE, "_FACTOR", 3.0, when=changed):
        yield lambda x: x * assumed_sum(1.5) + assumed_sum(1.5, negative=True), (X,)


class HasAssumed:
    @torch._dynamo.assume_constant_result
    def value(self) -> float:
        return _FACTOR


def times_a_method(x: torch.Tensor, thing: HasAssumed) -> torch.Tensor:
    return x * thing.value()


@unsaid
def an_assumed_result_of_a_method(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "_FACTOR", 3.0, when=changed):
        yield times_a_method, (X, HasAssumed())


class AssumesItself(nn.Module):
    @torch._dynamo.assume_constant_result
    def value(self) -> float:
        return _FACTOR

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.value()


@unsaid
def an_assumed_result_of_a_method_of_a_model(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "_FACTOR", 3.0, when=changed):
        yield AssumesItself(), (X,)


# Patterns, and what stands for types.

_PATTERN = re.compile("a+")


def looks_for_a_pattern(x: torch.Tensor) -> torch.Tensor:
    return x * (2 if _PATTERN.match("aab") else 3)


@case
def another_pattern(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "_PATTERN", re.compile("b+"), when=changed):
        yield looks_for_a_pattern, (X,)


def matches(x: torch.Tensor, pattern: re.Pattern[str]) -> torch.Tensor:
    return x * (2 if pattern.match("AAB") else 3)


@case
def a_pattern_with_another_flag(changed: bool) -> Iterator[Any]:
    yield Calls(matches, re.compile("a+", 0 if changed else re.IGNORECASE)), (X,)


def is_optional(x: torch.Tensor, form: Any) -> torch.Tensor:
    return x * (2 if form == int | None else 3)


@case
def another_form_of_types(changed: bool) -> Iterator[Any]:
    yield Calls(is_optional, str | None if changed else int | None), (X,)


# What is looked for by its name.


def grows(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 100, lambda y: y + _FACTOR, lambda y: y * _FACTOR, (x,))


@case
def a_global_variable_in_a_branch(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "_FACTOR", 3.0, when=changed):
        yield grows, (X,)


def differentiated(x: torch.Tensor) -> torch.Tensor:
    gradient: torch.Tensor = torch.func.grad(lambda y: (y * y * _FACTOR).sum())(x)
    return gradient


@case
def a_global_variable_in_a_gradient(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "_FACTOR", 3.0, when=changed):
        yield differentiated, (X,)


def mapped(x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = torch.func.vmap(lambda y: y * _FACTOR)(x)
    return result


@case
def a_global_variable_in_a_map(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "_FACTOR", 3.0, when=changed):
        yield mapped, (X,)


class Item: ...


_KINDS: dict[Any, float] = {Item: 2.0, int: 5.0}


def looks_for_a_class(x: torch.Tensor, thing: object) -> torch.Tensor:
    return x * (2.0 if type(thing) in _KINDS else 3.0)


@case
def a_class_that_is_no_key_any_more(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "_KINDS", {int: 5.0, float: 2.0}, when=changed):
        yield looks_for_a_class, (X, Item())


@case
def a_class_that_took_the_place_of_a_key(changed: bool) -> Iterator[Any]:
    item = Item()
    with patched(_HERE, "Item", type("Item", (), {"__module__": __name__}), when=changed):
        yield looks_for_a_class, (X, Item() if changed else item)


# Each case defines the operator anew.
_NAMESPACE = "hazard_calls"


def asks_for_an_operator(x: torch.Tensor) -> torch.Tensor:
    namespace = torch.ops.hazard_calls
    return x * (2.0 if hasattr(namespace, "sometimes") else 3.0)


@case
def an_operator_that_is_not_registered(changed: bool) -> Iterator[Any]:
    vars(torch.ops).pop(_NAMESPACE, None)
    library = torch.library.Library(_NAMESPACE, "FRAGMENT")
    library.define(f"{'rarely' if changed else 'sometimes'}(Tensor x) -> Tensor")
    yield asks_for_an_operator, (X,)
    library._destroy()


# Objects whose addresses are asked for, which the standard library does to recognise what it has seen.


class Config:
    def __init__(self, inner: Box, other: Box) -> None:
        self.inner = inner
        self.other = other


def writes_a_copy(x: torch.Tensor, config: Config) -> torch.Tensor:
    copied = copy.deepcopy(config)
    copied.inner.value = 7.0
    return x * copied.other.value


@case
def a_copy_of_one_object_or_of_two(changed: bool) -> Iterator[Any]:
    box = Box(2.0)
    yield writes_a_copy, (X, Config(box, box if changed else Box(2.0)))


@case
def a_copy_of_another_value(changed: bool) -> Iterator[Any]:
    yield writes_a_copy, (X, Config(Box(2.0), Box(5.0 if changed else 3.0)))


# What is asked of objects that no guard is on.


class Size(enum.Enum):
    SMALL = 1


def reads_what_a_member_has(x: torch.Tensor) -> torch.Tensor:
    return x * Size.SMALL.factor  # type: ignore[attr-defined]


@case
def an_attribute_of_a_member_of_an_enumeration(changed: bool) -> Iterator[Any]:
    with patched(Size.SMALL, "factor", 3.0 if changed else 2.0, when=True):
        yield reads_what_a_member_has, (X,)


def asks_what_it_says(x: torch.Tensor) -> torch.Tensor:
    return x * (int(repr(assumed)[-6:-1], 16) % 97)


@unsaid
def an_address_in_a_text(changed: bool) -> Iterator[Any]:
    yield asks_what_it_says, (X,)


def makes_a_tensor(x: torch.Tensor) -> torch.Tensor:
    return x * (2 if torch.zeros(1).is_meta else 3)


@case
def a_device_of_the_calling_block(changed: bool) -> Iterator[Any]:
    with torch.device("meta") if changed else contextlib.nullcontext():
        yield makes_a_tensor, (X,)


def asks_for_denormal_numbers(x: torch.Tensor) -> torch.Tensor:
    return x * (2 if sys.float_info.min * sys.float_info.epsilon else 3)


@case
def denormal_numbers_that_are_flushed(changed: bool) -> Iterator[Any]:
    torch.set_flush_denormal(changed)
    yield asks_for_denormal_numbers, (X,)
    torch.set_flush_denormal(False)


# Breaks in functions that have cells.


def breaking(factor: float) -> Function:
    def breaks(x: torch.Tensor) -> torch.Tensor:
        y = x * factor
        torch._dynamo.graph_break()
        return y + factor * _FACTOR

    return breaks


@case
def a_cell_of_a_function_that_breaks(changed: bool) -> Iterator[Any]:
    yield breaking(3.0 if changed else 2.0), (X,)


@case
def a_global_variable_after_a_break_in_a_closure(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "_FACTOR", 3.0, when=changed):
        yield breaking(2.0), (X,)


def adding_before(function: Function) -> Function:
    @functools.wraps(function)
    def wrapper(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        torch._dynamo.graph_break()
        return function(y) * 2

    return wrapper


@case
def another_function_in_a_wrapper_that_breaks(changed: bool) -> Iterator[Any]:
    yield adding_before((lambda x: x - 1) if changed else (lambda x: x * 3)), (X,)


def counting(start: float) -> Function:
    count = start

    def counts(x: torch.Tensor) -> torch.Tensor:
        nonlocal count
        count += 1
        torch._dynamo.graph_break()
        count += 1
        return x * count

    return counts


@case
def a_cell_that_is_written_around_a_break(changed: bool) -> Iterator[Any]:
    yield counting(5.0 if changed else 2.0), (X,)


# What Dynamo looks into and guards by nothing.
class Multiplying(torch.overrides.TorchFunctionMode):
    factor = 2

    def __torch_function__(self, function: Any, _: Any, arguments: Any = (), keywords: Any = None) -> Any:
        result = function(*arguments, **(keywords or {}))
        return result * self.factor if function is torch.sin else result


class MultiplyingMore(Multiplying):
    factor = 3


def enters(x: torch.Tensor, mode: Multiplying) -> torch.Tensor:
    with mode:
        return torch.sin(x)


@case
def another_mode_that_is_entered(changed: bool) -> Iterator[Any]:
    yield enters, (X, MultiplyingMore() if changed else Multiplying())


class MultiplyingBy(Multiplying):
    def __init__(self, factor: int) -> None:
        super().__init__()
        self.factor = factor


@case
def a_mode_that_is_entered_and_holds_another_number(changed: bool) -> Iterator[Any]:
    yield enters, (X, MultiplyingBy(3 if changed else 2))


def lists_names(x: torch.Tensor) -> torch.Tensor:
    return x * len(dir(re))


# Releases before 2.12 leave such a call to the interpreter.
@unsaid
def names_of_a_module_that_are_listed(changed: bool) -> Iterator[Any]:
    with patched(re, "HAZARD", 1, when=changed):
        yield lists_names, (X,)


def asks_for_the_storage(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return x * other.untyped_storage().size()


@unsaid
def the_size_of_a_storage(changed: bool) -> Iterator[Any]:
    yield asks_for_the_storage, (X, torch.ones(8)[:4] if changed else torch.ones(4))


# What generated code hands on over a break: sizes, and functions with the globals of their module.


def turned(x: torch.Tensor) -> torch.Tensor:
    size = x.shape
    torch._dynamo.graph_break()
    return x.reshape(size[::-1]) * size[0]


@case
def a_size_that_is_kept_over_a_break(changed: bool) -> Iterator[Any]:
    yield turned, (X.reshape(4, 3) if changed else X,)


_TIMES = 2.0


def made_before_a_break(x: torch.Tensor) -> torch.Tensor:
    # Annotations of one are not told.
    multiplied, x = (lambda y, by=1.0: y * by * _TIMES), x.sin()
    torch._dynamo.graph_break()
    return multiplied(x)


@case
def a_global_of_a_function_that_is_made_before_a_break(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "_TIMES", 3.0, when=changed):
        yield made_before_a_break, (X,)


def made_elsewhere_before_a_break(x: torch.Tensor) -> torch.Tensor:
    multiplied, x = multiplying_by_a_global(), x.sin()
    torch._dynamo.graph_break()
    return multiplied(x)


@case
def a_global_of_a_function_that_is_made_by_another_module(changed: bool) -> Iterator[Any]:
    with patched(python_hazards, "OF_MODULE", 3.0, when=changed):
        yield made_elsewhere_before_a_break, (X,)


@case
def another_function_that_is_made_by_another_module(changed: bool) -> Iterator[Any]:
    with patched(multiplying_by_a_global, "__code__", (lambda: lambda x: x + 5.0).__code__, when=changed):
        yield made_elsewhere_before_a_break, (X,)


def scaling(factor: float) -> type[torch.autograd.Function]:
    class Scaling(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * factor

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
            return gradients[0] * factor

    return Scaling


def calling(function: Any) -> Any:
    return lambda x: function(x) + 1


def _made_after_others(factor: float) -> type[torch.autograd.Function]:
    # Torch numbers them, and no two processes have made as many: the second one of the test has another seed.
    for _ in range(int(os.environ.get("PYTHONHASHSEED", "0"))):
        scaling(1.0)
    return scaling(factor)


@case
def an_autograd_function_that_is_made_in_a_function(changed: bool) -> Iterator[Any]:
    yield calling(_made_after_others(3.0 if changed else 2.0).apply), (X.clone().requires_grad_(),)


_BACKWARD, _ANOTHER = (_made_after_others(2.0)._backward_cls for _ in range(2))  # type: ignore[attr-defined]


def adds_its_number(x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = x + _BACKWARD._autograd_function_id
    return result


@unsaid
def the_number_of_an_autograd_function(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "_BACKWARD", _ANOTHER, when=changed):
        yield adds_its_number, (X,)


class Unmade(Mapping[str, int]):
    """Has entries once they can be made."""

    def __init__(self, entries: dict[str, int] | None) -> None:
        self.entries = entries

    def _made(self) -> dict[str, int]:
        if self.entries is None:
            raise ValueError
        return self.entries

    def __getitem__(self, key: str) -> int:
        return self._made()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._made())

    def __len__(self) -> int:
        return len(self._made())


class HasUnmade:
    entries = Unmade(None)


def looks_for_entries(x: torch.Tensor, holder: HasUnmade) -> torch.Tensor:
    try:
        return x * len(holder.entries)
    except ValueError:
        return x - 1


@case
def a_mapping_that_can_be_made_now(changed: bool) -> Iterator[Any]:
    with patched(HasUnmade, "entries", Unmade({"a": 1, "b": 2}), when=changed):
        yield looks_for_entries, (X, HasUnmade())
