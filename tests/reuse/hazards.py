"""What may differ between a process that publishes and one that reuses, case by case.

    python -m tests.reuse.hazards FOLDER publish [more]
    python -m tests.reuse.hazards FOLDER reuse [more]

The first records every case as it is. The second runs every case twice: as it was, where it has to be reused, and with
something changed, where it has to be as right as its own uncompiled form, however it gets there. It prints a line of
JSON for each case.
"""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import enum
import functools
import importlib
import json
import math
import os
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from tests.guard_timing import guards_not_timed
from tests.reuse import call_hazards as call_hazards  # its cases are in the table, too
from tests.reuse import called_hazards as called_hazards
from tests.reuse import library_hazards as library_hazards  # and so are these
from tests.reuse import model_hazards as model_hazards
from tests.reuse import object_hazards as object_hazards
from tests.reuse import python_hazards as python_hazards
from tests.reuse import released_hazards as released_hazards
from tests.reuse import state_hazards as state_hazards
from tests.reuse.cases import CASES, MORE, X, case, patched, unsaid
from tests.reuse.processes import Pod, pod


class Net(nn.Module):
    def __init__(self, activation: nn.Module | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, 4)
        self.act = activation or nn.GELU()
        self.second = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.act(self.first(x)))


@case
def another_activation(changed: bool) -> Iterator[Any]:
    yield Net(nn.ReLU() if changed else nn.GELU()), (X,)


@case
def argument_of_an_activation(changed: bool) -> Iterator[Any]:
    yield Net(nn.LeakyReLU(0.3 if changed else 0.1)), (X,)


class ByAttribute(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x) + 1


@case
def function_as_attribute(changed: bool) -> Iterator[Any]:
    yield ByAttribute(F.relu if changed else F.gelu), (X,)


@case
def torch_function_as_attribute(changed: bool) -> Iterator[Any]:
    yield ByAttribute(torch.tanh if changed else torch.sigmoid), (X,)


def scaled(x: torch.Tensor, by: float = 2.0, *, plus: float = 0.0) -> torch.Tensor:
    return x * by + plus


@case
def partial_with_another_argument(changed: bool) -> Iterator[Any]:
    yield ByAttribute(functools.partial(scaled, by=3.0 if changed else 2.0)), (X,)


@case
def lambda_with_another_closure(changed: bool) -> Iterator[Any]:
    factor = 5.0 if changed else 4.0
    yield ByAttribute(lambda x: x * factor), (X,)


@case
def lambda_with_other_code(changed: bool) -> Iterator[Any]:
    yield ByAttribute((lambda x: x * 3) if changed else (lambda x: x * 2)), (X,)


def double(_: object, __: object, result: torch.Tensor) -> torch.Tensor:
    return result * 2


def triple(_: object, __: object, result: torch.Tensor) -> torch.Tensor:
    return result * 3


@case
def forward_hook_added(changed: bool) -> Iterator[Any]:
    net = Net()
    if changed:
        net.first.register_forward_hook(double)
    yield net, (X,)


@case
def forward_hook_added_to_the_model(changed: bool) -> Iterator[Any]:
    net = Net()
    if changed:
        net.register_forward_hook(double)
    yield net, (X,)


@case
def forward_hook_removed(changed: bool) -> Iterator[Any]:
    net = Net()
    handle = net.first.register_forward_hook(double)
    if changed:
        handle.remove()
    yield net, (X,)


@case
def another_forward_hook(changed: bool) -> Iterator[Any]:
    net = Net()
    net.first.register_forward_hook(triple if changed else double)
    yield net, (X,)


@case
def forward_pre_hook_added(changed: bool) -> Iterator[Any]:
    net = Net()
    if changed:
        net.second.register_forward_pre_hook(lambda _, inputs: (inputs[0] + 1,))
    yield net, (X,)


def calls_model(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = model(x)
    return result


@case
def hook_of_all_modules(changed: bool) -> Iterator[Any]:
    handle = nn.modules.module.register_module_forward_hook(double) if changed else None
    yield calls_model, (Net(), X)
    if handle is not None:
        handle.remove()


@case
def a_model_as_an_argument(changed: bool) -> Iterator[Any]:
    yield calls_model, (Net(nn.Tanh() if changed else nn.SiLU()), X)


class Own(nn.Linear):
    factor = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.helped(super().forward(x)) * self.factor

    def helped(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1

    @property
    def offset(self) -> float:
        return 1.0

    @staticmethod
    def moved(x: torch.Tensor) -> torch.Tensor:
        return x - 1

    @classmethod
    def shifted(cls, x: torch.Tensor) -> torch.Tensor:
        return x + cls.factor


class UsesOwn(nn.Module):
    def __init__(self, kind: type[Own] = Own) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.own = kind(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.own.shifted(self.own.moved(self.own(x) * self.own.offset))


@case
def patched_forward_of_a_class(changed: bool) -> Iterator[Any]:
    with patched(Own, "forward", lambda self, x: x * 7, when=changed):
        yield UsesOwn(), (X,)


@case
def patched_method_of_a_class(changed: bool) -> Iterator[Any]:
    with patched(Own, "helped", lambda self, x: x - 5, when=changed):
        yield UsesOwn(), (X,)


@case
def patched_method_of_an_object(changed: bool) -> Iterator[Any]:
    net = UsesOwn()
    if changed:
        net.own.helped = types.MethodType(lambda self, x: x - 5, net.own)  # type: ignore[method-assign]
    yield net, (X,)


@case
def patched_forward_of_an_object(changed: bool) -> Iterator[Any]:
    net = Net()
    if changed:
        net.first.forward = lambda x: x * 2  # type: ignore[method-assign]
    yield net, (X,)


@case
def patched_forward_of_the_model(changed: bool) -> Iterator[Any]:
    net = Net()
    if changed:
        net.forward = types.MethodType(lambda self, x: self.first(x), net)  # type: ignore[method-assign]
    yield net, (X,)


@case
def patched_code_of_a_function(changed: bool) -> Iterator[Any]:
    with patched(Own.helped, "__code__", (lambda self, x: x - 5).__code__, when=changed):
        yield UsesOwn(), (X,)


@case
def patched_class_of_torch(changed: bool) -> Iterator[Any]:
    with patched(nn.GELU, "forward", lambda self, x: x * 7, when=changed):
        yield Net(), (X,)


@case
def patched_call_of_all_modules(changed: bool) -> Iterator[Any]:
    original = nn.Module._call_impl
    with patched(nn.Module, "_call_impl", lambda self, *a, **k: original(self, *a, **k) * 2, when=changed):
        yield calls_model, (UsesOwn(), X)


@case
def another_property(changed: bool) -> Iterator[Any]:
    with patched(Own, "offset", property(lambda self: 3.0), when=changed):
        yield UsesOwn(), (X,)


@case
def another_static_method(changed: bool) -> Iterator[Any]:
    with patched(Own, "moved", staticmethod(lambda x: x + 9), when=changed):
        yield UsesOwn(), (X,)


@case
def another_class_attribute(changed: bool) -> Iterator[Any]:
    with patched(Own, "factor", 4.0, when=changed):
        yield UsesOwn(), (X,)


class Sub(Own):
    def helped(self, x: torch.Tensor) -> torch.Tensor:
        return x * 11


@case
def subclassed_module(changed: bool) -> Iterator[Any]:
    yield UsesOwn(Sub if changed else Own), (X,)


@case
def class_of_the_same_name(changed: bool) -> Iterator[Any]:
    body = {"forward": (lambda self, x: x * 3) if changed else (lambda self, x: x * 2)}
    kind = type("Local", (nn.Module,), body)
    yield nn.Sequential(kind(), nn.ReLU()), (X,)


def helper(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def other_helper(x: torch.Tensor) -> torch.Tensor:
    return x - 1


def calls_helper(x: torch.Tensor) -> torch.Tensor:
    return helper(x) * 2


_HERE = sys.modules[__name__]


@case
def rebound_function(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "helper", other_helper, when=changed):
        yield calls_helper, (X,)


def calls_softplus(x: torch.Tensor) -> torch.Tensor:
    return F.softplus(x)


@case
def rebound_function_of_torch(changed: bool) -> Iterator[Any]:
    with patched(F, "softplus", F.relu, when=changed):
        yield calls_softplus, (X,)


def calls_sigmoid(x: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(x)


@case
def rebound_builtin_of_torch(changed: bool) -> Iterator[Any]:
    with patched(torch, "sigmoid", torch.tanh, when=changed):
        yield calls_sigmoid, (X,)


def calls_a_method(x: torch.Tensor) -> torch.Tensor:
    return x.sigmoid()


@case
def patched_method_of_tensors(changed: bool) -> Iterator[Any]:
    with patched(torch.Tensor, "sigmoid", lambda self: self * 3, when=changed):
        yield calls_a_method, (X,)


def calls_math(x: torch.Tensor) -> torch.Tensor:
    return x * math.sqrt(2.0) * math.pi


@case
def rebound_function_of_the_standard_library(changed: bool) -> Iterator[Any]:
    with patched(math, "sqrt", math.exp, when=changed):
        yield calls_math, (X,)


@case
def rebound_constant_of_a_module(changed: bool) -> Iterator[Any]:
    with patched(math, "pi", 3.0, when=changed):
        yield calls_math, (X,)


def calls_scaled(x: torch.Tensor) -> torch.Tensor:
    return scaled(x)


@case
def other_defaults(changed: bool) -> Iterator[Any]:
    with patched(scaled, "__defaults__", (3.0,), when=changed):
        yield calls_scaled, (X,)


@case
def other_keyword_defaults(changed: bool) -> Iterator[Any]:
    with patched(scaled, "__kwdefaults__", {"plus": 1.0}, when=changed):
        yield calls_scaled, (X,)


def made(factor: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return x * factor

    return inner


@case
def another_closure(changed: bool) -> Iterator[Any]:
    yield made(3.0 if changed else 2.0), (X,)


@functools.lru_cache
def cached_factor(number: int) -> int:
    return number + 1


def calls_cached(x: torch.Tensor) -> torch.Tensor:
    return x * cached_factor(2)


@case
def rebound_cached_function(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "cached_factor", functools.lru_cache(lambda number: number + 5), when=changed):
        yield calls_cached, (X,)


FACTOR = 2.0
TABLE = {"factor": 2.0}
LIST = [1.0, 2.0]


def reads_global(x: torch.Tensor) -> torch.Tensor:
    return x * FACTOR * TABLE["factor"] + LIST[1] + len(LIST)


@case
def another_global_constant(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "FACTOR", 5.0, when=changed):
        yield reads_global, (X,)


@case
def another_entry_of_a_global_dictionary(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "TABLE", {"factor": 5.0}, when=changed):
        yield reads_global, (X,)


@case
def a_longer_global_list(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "LIST", [1.0, 2.0, 3.0], when=changed):
        yield reads_global, (X,)


class Lazy(nn.Module):
    def __init__(self, values: dict[str, float]) -> None:
        super().__init__()
        self.values = values

    def __getattr__(self, name: str) -> Any:
        if name == "factor":
            return 2.0
        return super().__getattr__(name)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor + self.values["a"]


@case
def another_getattr(changed: bool) -> Iterator[Any]:
    def answers(self: Any, name: str) -> Any:
        return 9.0 if name == "factor" else nn.Module.__getattr__(self, name)

    with patched(Lazy, "__getattr__", answers, when=changed):
        yield Lazy({"a": 1.0}), (X,)


@case
def another_entry_of_a_dictionary_of_the_model(changed: bool) -> Iterator[Any]:
    yield Lazy({"a": 2.0 if changed else 1.0}), (X,)


@case
def an_attribute_that_getattr_answered(changed: bool) -> Iterator[Any]:
    net = Lazy({"a": 1.0})
    if changed:
        net.factor = 8.0
    yield net, (X,)


class Kind(enum.Enum):
    ADD = 1
    MULTIPLY = 2


@dataclasses.dataclass
class Config:
    scale: float = 2.0
    kind: Kind = Kind.ADD
    name: str = "relu"
    sizes: tuple[int, ...] = (1, 2)


class Dotted(dict[str, Any]):
    def __getattr__(self, name: str) -> Any:
        return self[name]


class Configured(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * self.config.scale
        x = x + 1 if self.config.kind is Kind.ADD else x * 3
        return getattr(F, self.config.name)(x) + sum(self.config.sizes)


@case
def another_constant_of_a_configuration(changed: bool) -> Iterator[Any]:
    yield Configured(Config(scale=3.0 if changed else 2.0)), (X,)


@case
def another_member_of_an_enumeration(changed: bool) -> Iterator[Any]:
    yield Configured(Config(kind=Kind.MULTIPLY if changed else Kind.ADD)), (X,)


@case
def another_text_of_a_configuration(changed: bool) -> Iterator[Any]:
    yield Configured(Config(name="gelu" if changed else "relu")), (X,)


@case
def another_tuple_of_a_configuration(changed: bool) -> Iterator[Any]:
    yield Configured(Config(sizes=(1, 2, 3) if changed else (1, 2))), (X,)


@case
def another_class_of_a_configuration(changed: bool) -> Iterator[Any]:
    values = {"scale": 2.0, "kind": Kind.ADD, "name": "relu", "sizes": (1, 3)}
    yield Configured(Dotted(values) if changed else Config(sizes=(1, 2))), (X,)


@case
def another_entry_of_a_dotted_dictionary(changed: bool) -> Iterator[Any]:
    yield Configured(Dotted(scale=3.0 if changed else 2.0, kind=Kind.ADD, name="relu", sizes=(1, 2))), (X,)


@contextlib.contextmanager
def variable(name: str, value: str | None) -> Iterator[None]:
    before = os.environ.pop(name, None)
    if value is not None:
        os.environ[name] = value
    yield
    os.environ.pop(name, None)
    if before is not None:
        os.environ[name] = before


def reads_variable(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if os.environ.get("HAZARD_SWITCH", "0") == "1" else x - 1


@case
def a_variable_that_was_not_set(changed: bool) -> Iterator[Any]:
    with variable("HAZARD_SWITCH", "1" if changed else None):
        yield reads_variable, (X,)


@case
def another_value_of_a_variable(changed: bool) -> Iterator[Any]:
    with variable("HAZARD_SWITCH", "1" if changed else "2"):
        yield reads_variable, (X,)


def asks_for_variable(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if "HAZARD_SWITCH" in os.environ else x - 1


@case
def a_variable_that_is_asked_for(changed: bool) -> Iterator[Any]:
    with variable("HAZARD_SWITCH", "1" if changed else None):
        yield asks_for_variable, (X,)


def counts_variables(x: torch.Tensor) -> torch.Tensor:
    return x * sum(1 for name in os.environ if name.startswith("HAZARD_SWITCH"))


@unsaid
def another_number_of_variables(changed: bool) -> Iterator[Any]:
    with variable("HAZARD_SWITCH_OF_MORE", "1" if changed else None), variable("HAZARD_SWITCH", "1"):
        yield counts_variables, (X,)


def gets_variable(x: torch.Tensor) -> torch.Tensor:
    return x * (3 if os.getenv("HAZARD_" + "SWITCH") else 2)


@case
def a_variable_read_by_getenv(changed: bool) -> Iterator[Any]:
    with variable("HAZARD_SWITCH", "1" if changed else None):
        yield gets_variable, (X,)


class Trains(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if self.training else x - 1


@case
def training_flag(changed: bool) -> Iterator[Any]:
    yield Trains().train(changed), (X,)


@case
def training_flag_of_a_part(changed: bool) -> Iterator[Any]:
    net = nn.Sequential(Trains(), nn.ReLU())
    net[0].train(not changed)
    yield net, (X,)


@case
def another_dtype(changed: bool) -> Iterator[Any]:
    dtype = torch.float64 if changed else torch.float32
    yield Net().to(dtype), (X.to(dtype),)


@case
def quantised_weights(changed: bool) -> Iterator[Any]:
    class Quantised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            dtype = torch.int8 if changed else torch.float32
            self.register_buffer("weight", (torch.eye(4) * 3.4).to(dtype))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.get_buffer("weight").to(x.dtype)

    yield Quantised(), (X,)


class LoRA(nn.Module):
    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.base, self.low, self.high = base, nn.Linear(4, 2, bias=False), nn.Linear(2, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.high(self.low(x))


@case
def lora_attached(changed: bool) -> Iterator[Any]:
    net = Net()
    if changed:
        net.first = LoRA(net.first)  # type: ignore[assignment]
    yield net, (X,)


@case
def a_parametrised_weight(changed: bool) -> Iterator[Any]:
    net = Net()
    if changed:
        nn.utils.parametrizations.weight_norm(net.first)
        net.first.parametrizations.weight.original0.data *= 2
    yield net, (X,)


@case
def more_layers(changed: bool) -> Iterator[Any]:
    torch.manual_seed(0)
    yield nn.Sequential(*[Own(4, 4, bias=False) for _ in range(3 if changed else 2)]), (X,)


@case
def layers_in_another_order(changed: bool) -> Iterator[Any]:
    layers = [nn.GELU(), nn.Tanh()]
    yield nn.Sequential(*(reversed(layers) if changed else layers)), (X,)


@case
def a_weight_without_a_bias(changed: bool) -> Iterator[Any]:
    torch.manual_seed(0)
    yield nn.Sequential(nn.Linear(4, 4, bias=not changed)), (X,)


@case
def tied_weights(changed: bool) -> Iterator[Any]:
    net = Net()
    if changed:
        net.second.weight = net.first.weight
    yield net, (X,)


def makes(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros(4) + torch.full((4,), 0.5) + x.sum()


@case
def default_dtype(changed: bool) -> Iterator[Any]:
    torch.set_default_dtype(torch.float64 if changed else torch.float32)
    yield makes, (X,)
    torch.set_default_dtype(torch.float32)


@case
def autocast(changed: bool) -> Iterator[Any]:
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=changed):
        yield Net(), (X,)


@case
def inference_mode(changed: bool) -> Iterator[Any]:
    with torch.inference_mode(changed):
        yield Net(), (X,)


def asks_for_inference(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if torch.is_inference_mode_enabled() else x - 1


@case
def inference_mode_that_is_asked_for(changed: bool) -> Iterator[Any]:
    with torch.inference_mode(changed):
        yield asks_for_inference, (X,)


@case
def gradients(changed: bool) -> Iterator[Any]:
    with torch.set_grad_enabled(changed):
        yield Net(), (X,)


@case
def an_input_with_gradients(changed: bool) -> Iterator[Any]:
    yield Net(), (X.clone().requires_grad_(changed),)


def asks_for_threads(x: torch.Tensor) -> torch.Tensor:
    return x * torch.get_num_threads()


@case
def number_of_threads(changed: bool) -> Iterator[Any]:
    before = torch.get_num_threads()
    torch.set_num_threads(2 if changed else 1)
    yield asks_for_threads, (X,)
    torch.set_num_threads(before)


def asks_for_precision(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if torch.get_float32_matmul_precision() == "high" else x - 1


@case
def precision_of_matrix_products(changed: bool) -> Iterator[Any]:
    torch.set_float32_matmul_precision("high" if changed else "highest")
    yield asks_for_precision, (X,)
    torch.set_float32_matmul_precision("highest")


def asks_for_determinism(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if torch.are_deterministic_algorithms_enabled() else x - 1


@case
def deterministic_algorithms(changed: bool) -> Iterator[Any]:
    torch.use_deterministic_algorithms(changed)
    yield asks_for_determinism, (X,)
    torch.use_deterministic_algorithms(False)


def asks_for_a_backend(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if torch.backends.mkldnn.enabled else x - 1


@case
def a_switch_of_a_backend(changed: bool) -> Iterator[Any]:
    with torch.backends.mkldnn.flags(enabled=not changed):
        yield asks_for_a_backend, (X,)


@case
def another_size(changed: bool) -> Iterator[Any]:
    yield Net(), (torch.ones(5 if changed else 3, 4),)


def reads_stride(x: torch.Tensor) -> torch.Tensor:
    return x * x.stride(0) + x.is_contiguous()


@case
def another_stride(changed: bool) -> Iterator[Any]:
    square = torch.arange(16.0).reshape(4, 4)
    yield reads_stride, (square.t() if changed else square,)


def writes(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return y * 2 + x


@case
def the_same_tensor_twice(changed: bool) -> Iterator[Any]:
    x, y = X.clone(), X.clone()
    yield writes, (x, x) if changed else (x, y)


@case
def views_of_one_storage(changed: bool) -> Iterator[Any]:
    whole = torch.arange(8.0)
    yield writes, (whole[:4], whole[2:6]) if changed else (torch.arange(4.0), torch.arange(4.0))


def many(x: torch.Tensor, *others: torch.Tensor, **named: float) -> torch.Tensor:
    return x + len(others) + sum(named.values())


@case
def more_arguments(changed: bool) -> Iterator[Any]:
    yield many, (X, X) if changed else (X,)


def constant(x: torch.Tensor, factor: Any) -> torch.Tensor:
    return x * 2 if factor is None else x * (3 if factor == "a" else 4)


@case
def another_argument(changed: bool) -> Iterator[Any]:
    yield constant, (X, "b" if changed else "a")


@case
def another_type_of_an_argument(changed: bool) -> Iterator[Any]:
    yield constant, (X, None if changed else "a")


@case
def other_weights(changed: bool) -> Iterator[Any]:
    net = Net()
    if changed:
        net.first.weight.data *= 2
    yield net, (X,)


def imports_locally(x: torch.Tensor) -> torch.Tensor:
    import torch.nn.functional as functions
    from torch.nn.functional import softsign

    return functions.softplus(x) + softsign(x)


@case
def rebound_function_that_is_imported_locally(changed: bool) -> Iterator[Any]:
    with patched(F, "softplus", F.relu, when=changed):
        yield imports_locally, (X,)


@case
def rebound_name_that_is_imported_locally(changed: bool) -> Iterator[Any]:
    with patched(F, "softsign", F.relu, when=changed):
        yield imports_locally, (X,)


@case
def rebound_function_that_is_found_by_text(changed: bool) -> Iterator[Any]:
    with patched(F, "hardswish", F.silu, when=changed):
        yield Configured(Config(name="hardswish")), (X,)


def closing_over(function: Callable[..., Any]) -> Callable[[torch.Tensor], torch.Tensor]:
    def inner(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = function(x) + 1
        return result

    return inner


@case
def closure_over_another_function_of_torch(changed: bool) -> Iterator[Any]:
    yield closing_over(F.relu if changed else F.gelu), (X,)


@case
def closure_over_another_builtin(changed: bool) -> Iterator[Any]:
    yield closing_over(torch.sin if changed else torch.cos), (X,)


def with_default(x: torch.Tensor, function: Callable[..., Any] = torch.sin) -> torch.Tensor:
    result: torch.Tensor = function(x)
    return result


@case
def default_that_is_another_function(changed: bool) -> Iterator[Any]:
    with patched(with_default, "__defaults__", (torch.cos,), when=changed):
        yield with_default, (X,)


class HasTable(nn.Module):
    def __init__(self, table: Any) -> None:
        super().__init__()
        self.table = table

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for function in self.table:
            x = function(x)
        return x


@case
def another_function_in_a_list(changed: bool) -> Iterator[Any]:
    yield HasTable([torch.sin, F.gelu if changed else F.relu]), (X,)


class Descriptor:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __get__(self, owner: object, _: type | None = None) -> float:
        return self.factor


class Holder:
    factor = Descriptor(2.0)
    config = Config(scale=2.0)


class HasHolder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.holder = Holder()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.holder.factor + self.holder.config.scale


@case
def another_value_of_a_descriptor(changed: bool) -> Iterator[Any]:
    with patched(Holder, "factor", Descriptor(3.0), when=changed):
        yield HasHolder(), (X,)


@case
def another_object_as_class_attribute(changed: bool) -> Iterator[Any]:
    with patched(Holder, "config", Config(scale=3.0), when=changed):
        yield HasHolder(), (X,)


class Pair(NamedTuple):
    scale: float
    kind: Kind = Kind.ADD
    name: str = "relu"
    sizes: tuple[int, ...] = ()


@case
def another_field_of_a_named_tuple(changed: bool) -> Iterator[Any]:
    yield Configured(Pair(3.0 if changed else 2.0)), (X,)


class Bound(nn.Module):
    def __init__(self, owner: Any) -> None:
        super().__init__()
        self.call = owner.apply

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.call(x)
        return result


class Owner:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


@case
def a_bound_method_of_another_object(changed: bool) -> Iterator[Any]:
    yield Bound(Owner(3.0 if changed else 2.0)), (X,)


class Doubling(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0] * 2


def doubles(x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = Doubling.apply(x)
    return result


@case
def another_autograd_function(changed: bool) -> Iterator[Any]:
    with patched(Doubling, "forward", staticmethod(lambda ctx, x: x * 5), when=changed):
        yield doubles, (X.clone().requires_grad_(),)


def counts(x: torch.Tensor) -> torch.Tensor:
    return x * pow(2, 3)


@case
def rebound_builtin(changed: bool) -> Iterator[Any]:
    with patched(builtins, "pow", lambda *_: 17, when=changed):
        yield counts, (X,)


@case
def a_name_that_hides_a_builtin(changed: bool) -> Iterator[Any]:
    if changed:
        _HERE.pow = lambda *_: 17  # type: ignore[attr-defined]
    yield counts, (X,)
    vars(_HERE).pop("pow", None)


@case
def an_edited_source_file(changed: bool) -> Iterator[Any]:
    folder = Path(os.environ["HAZARDS_SOURCES"]) / ("edited" if changed else "plain")
    folder.mkdir(parents=True, exist_ok=True)
    source = "def outer(x):\n    def inner(y):\n        return y * {}\n    return inner(x) + 1\n"
    (folder / "hazard_source.py").write_text(source.format(3 if changed else 2))
    sys.modules.pop("hazard_source", None)
    importlib.invalidate_caches()
    sys.path.insert(0, str(folder))
    module = importlib.import_module("hazard_source")
    sys.path.remove(str(folder))
    yield ByAttribute(module.outer), (X,)


def results_of(pod: Pod, name: str, *, changed: bool) -> dict[str, Any]:
    """Runs a case with and without the backend."""
    torch._dynamo.reset()
    pod.outcomes.clear()
    enter = (CASES | MORE)[name]
    with enter(changed) as (model, inputs):
        expected = model(*[_copied(each) for each in inputs]) if name not in ALIASED else _eager(model, inputs)
    # Anew, since the call may have changed what it was called with.
    with enter(changed) as (model, inputs):
        found = torch.compile(model, backend=pod.backend, dynamic=False)(*inputs)
    return {
        "case": name,
        "right": _equal(found, expected),
        "expected": f"{expected.dtype} {expected.tolist()}",
        "reused": bool(pod.outcomes) and not pod.traced,
        "reasons": pod.traced,
    }


ALIASED = frozenset({"the_same_tensor_twice", "views_of_one_storage", "the_size_of_a_storage"})


def _eager(model: Any, inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
    # The same relations between copies: all of them views of one copied storage.
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage().clone() for each in inputs}
    copies = {
        id(each): torch.empty(0).set_(
            storages[each.untyped_storage().data_ptr()], each.storage_offset(), each.shape, each.stride()
        )
        for each in inputs
    }
    result: torch.Tensor = model(*[copies[id(each)] for each in inputs])
    return result


def _copied(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().as_strided(value.shape, value.stride()).clone().requires_grad_(value.requires_grad)


def _equal(found: torch.Tensor, expected: torch.Tensor) -> bool:
    same = (found.dtype, found.shape, found.requires_grad, found.is_inference()) == (
        expected.dtype,
        expected.shape,
        expected.requires_grad,
        expected.is_inference(),
    )
    return same and torch.equal(found, expected)


def reuse_by_mode(folder: Path) -> dict[str, bool]:
    """Whether a model that was published is reused in several modes, and with another backend."""
    ways: dict[str, dict[str, Any]] = {
        "published": {},
        "the same": {},
        "another mode": {"mode": "reduce-overhead"},
        "another backend": {"backend": "eager"},
    }
    reused = {}
    with pod(folder) as own:
        for name, how in ways.items():
            torch._dynamo.reset()
            own.outcomes.clear()
            torch.compile(Net(), **{"backend": own.backend, "dynamic": False, **how})(X)
            reused[name] = bool(own.outcomes) and not own.traced
    return reused


def main(folder: str, action: str, which: str = "table") -> None:
    """Runs the cases of the table, or those that are tried when asked for ("more")."""
    with pod(Path(folder), publishes=action == "publish") as own, guards_not_timed():
        for name in MORE if which == "more" else CASES:
            again = results_of(own, name, changed=False)
            changed = results_of(own, name, changed=True) if action == "reuse" else None
            print(json.dumps({"case": name, "again": again, "changed": changed}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
