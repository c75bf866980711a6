"""Cases of tests/reuse/hazards.py about models and tensors: how parts are held, called and found, what is noted on
tensors, what torch hangs on parts."""

from __future__ import annotations

import copy
import dataclasses
import functools
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
import torch.nn.utils.prune
from torch import nn
from torch.utils import _pytree

from tests.reuse.cases import X, case, given, more, patched
from tests.reuse.python_hazards import Box, Calls

_HERE = sys.modules[__name__]


def _seeded(build: Callable[[], Any]) -> Any:
    torch.manual_seed(0)
    return build()


def _model(name: str, before: Callable[[], Any], after: Callable[[], Any]) -> None:
    def another(changed: bool) -> Iterator[Any]:
        yield _seeded(after if changed else before), (X,)

    another.__name__ = name
    more(another)


class Net(nn.Module):
    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.activation = activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.activation(self.first(x))


def double(_: object, __: object, result: torch.Tensor) -> torch.Tensor:
    return result * 2


def triple(_: object, __: object, result: torch.Tensor) -> torch.Tensor:
    return result * 3


def calls_model(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x)


# How parts are held.


class Holds(nn.Module):
    """A model that holds a part which is no submodule of it."""

    def __init__(self, held: Any, call: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.held = held
        self.call = call

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.call(self.held, x)


@dataclasses.dataclass
class Parts:
    part: nn.Module


_WAYS: dict[str, tuple[Callable[[nn.Module], Any], Callable[[Any, torch.Tensor], Any]]] = {
    "list": (lambda part: [part], lambda held, x: held[0](x)),
    "tuple": (lambda part: (part,), lambda held, x: held[0](x)),
    "dictionary": (lambda part: {"part": part}, lambda held, x: held["part"](x)),
    "data_class": (Parts, lambda held, x: held.part(x)),
    "partial": (lambda part: functools.partial(part), lambda held, x: held(x)),
    "closure": (lambda part: lambda x: part(x), lambda held, x: held(x)),
    "method": (lambda part: part.forward, lambda held, x: held(x)),
    "box": (Box, lambda held, x: held.value(x)),
    "module_list": (lambda part: nn.ModuleList([part]), lambda held, x: held[0](x)),
    "module_dictionary": (lambda part: nn.ModuleDict({"part": part}), lambda held, x: held["part"](x)),
    "sequence": (lambda part: nn.Sequential(part, nn.Identity()), lambda held, x: held[:1](x)),
    "submodule_by_path": (lambda part: nn.Sequential(part), lambda held, x: held.get_submodule("0")(x)),
    "children": (lambda part: nn.Sequential(part), lambda held, x: next(iter(held.children()))(x)),
    "named_modules": (lambda part: nn.Sequential(part), lambda held, x: dict(held.named_modules())["0"](x)),
    "getattr": (lambda part: nn.Sequential(part), lambda held, x: getattr(held, "0")(x)),
}


def _held_part(way: str, hold: Callable[[nn.Module], Any], call: Callable[[Any, torch.Tensor], Any]) -> None:
    _model(
        f"another_part_in_a_{way}",
        lambda: Holds(hold(nn.Tanh()), call),
        lambda: Holds(hold(nn.Sigmoid()), call),
    )


for _way, (_hold, _call) in _WAYS.items():
    _held_part(_way, _hold, _call)

_GLOBAL_PART: nn.Module = nn.Tanh()


@case
def another_part_among_globals(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "_GLOBAL_PART", nn.Sigmoid(), when=changed):
        yield lambda x: _GLOBAL_PART(x), (X,)


def _number_of(find: Callable[[nn.Module], Any]) -> Callable[[Any, torch.Tensor], torch.Tensor]:
    return lambda held, x: x * (1 + find(held))


def _linears(number: int) -> nn.Module:
    return nn.Sequential(*(nn.Linear(4, 4) for _ in range(number)))


for _what, _find in {
    "parameters": lambda held: len(list(held.parameters())),
    "modules": lambda held: len(list(held.modules())),
    "length": len,
    "state": lambda held: len(held.state_dict()),
    "names": lambda held: sum([len(name) for name, _ in held.named_parameters()]),
    "elements": lambda held: sum([each.numel() for each in held.parameters()]),
}.items():
    _model(
        f"{_what}_of_a_model_that_are_counted",
        lambda f=_find: Holds(_linears(1), _number_of(f)),
        lambda f=_find: Holds(_linears(2), _number_of(f)),
    )


def _shared(*, is_shared: bool) -> nn.Module:
    model = _linears(2)
    if is_shared:
        model[1] = model[0]  # type: ignore[operator]
    return model


_model(
    "parts_that_are_one",
    lambda: Holds(_shared(is_shared=False), _number_of(lambda held: len(list(held.parameters())))),
    lambda: Holds(_shared(is_shared=True), _number_of(lambda held: len(list(held.parameters())))),
)


def _with_buffer(*, is_persistent: bool = True, kind: str = "buffer") -> nn.Module:
    model = nn.Module()
    if kind == "buffer":
        model.register_buffer("offset", torch.ones(4), persistent=is_persistent)
    elif kind == "parameter":
        model.offset = nn.Parameter(torch.ones(4))  # type: ignore[assignment]
    else:
        model.offset = torch.ones(4)
    return model


_model(
    "a_buffer_that_is_kept_no_more",
    lambda: Holds(_with_buffer(), _number_of(lambda held: len(held.state_dict()))),
    lambda: Holds(_with_buffer(is_persistent=False), _number_of(lambda held: len(held.state_dict()))),
)
_model(
    "a_buffer_that_became_a_parameter",
    lambda: Holds(_with_buffer(), _number_of(lambda held: len(list(held.parameters())))),
    lambda: Holds(_with_buffer(kind="parameter"), _number_of(lambda held: len(list(held.parameters())))),
)
_model(
    "a_buffer_that_became_an_attribute",
    lambda: Holds(_with_buffer(), _number_of(lambda held: len(list(held.buffers())))),
    lambda: Holds(_with_buffer(kind="attribute"), _number_of(lambda held: len(list(held.buffers())))),
)
_model(
    "a_parameter_that_is_none",
    lambda: Holds(nn.Linear(4, 4), lambda held, x: x * (2 if held.bias is None else 3)),
    lambda: Holds(nn.Linear(4, 4, bias=False), lambda held, x: x * (2 if held.bias is None else 3)),
)
_model(
    "names_of_parts_in_another_order",
    lambda: Holds(nn.ModuleDict({"a": nn.Tanh(), "bc": nn.ReLU()}), lambda held, x: x * len(next(iter(held)))),
    lambda: Holds(nn.ModuleDict({"bc": nn.ReLU(), "a": nn.Tanh()}), lambda held, x: x * len(next(iter(held)))),
)
_model(
    "attributes_of_a_part_in_another_order",
    lambda: Holds(_with_attributes("a", "bc"), lambda held, x: x * len(list(held.__dict__)[-1])),
    lambda: Holds(_with_attributes("bc", "a"), lambda held, x: x * len(list(held.__dict__)[-1])),
)


def _with_attributes(*names: str) -> nn.Module:
    model = nn.Module()
    for name in names:
        setattr(model, name, 1)
    return model


# How parts are called.


class Doubles(nn.Module):
    def forward(self, x: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
        return x * factor

    def other(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


@case
def a_call_that_a_class_defines(changed: bool) -> Iterator[Any]:
    with patched(Doubles, "__call__", lambda self, x: x * 3, when=changed):
        yield Holds(nn.ModuleList([Doubles()]), lambda held, x: held[0](x)), (X,)


@case
def the_call_of_all_modules(changed: bool) -> Iterator[Any]:
    original = nn.Module.__call__
    with patched(nn.Module, "__call__", lambda self, *a, **k: original(self, *a, **k) + 1, when=changed):
        yield calls_model, (Holds(nn.ModuleList([Doubles()]), lambda held, x: held[0](x)), X)


@case
def the_wrapped_call_of_all_modules(changed: bool) -> Iterator[Any]:
    original = nn.Module._wrapped_call_impl
    with (
        patched(nn.Module, "_wrapped_call_impl", lambda self, *a, **k: original(self, *a, **k) + 1, when=changed),
        patched(nn.Module, "__call__", lambda self, *a, **k: self._wrapped_call_impl(*a, **k), when=True),
    ):
        yield calls_model, (Holds(nn.ModuleList([Doubles()]), lambda held, x: held[0](x)), X)


@case
def an_attribute_that_all_modules_find(changed: bool) -> Iterator[Any]:
    original = nn.Module.__getattr__

    def finds(self: Any, name: str) -> Any:
        return 3.0 if name == "unknown" else original(self, name)

    with patched(nn.Module, "__getattr__", finds, when=changed):
        yield Holds(nn.ModuleList(), lambda held, x: x * getattr(held, "unknown", 2.0)), (X,)


@case
def a_method_that_is_not_forward(changed: bool) -> Iterator[Any]:
    with patched(Doubles, "other", lambda self, x: x * 3, when=changed):
        yield Holds(nn.ModuleList([Doubles()]), lambda held, x: held[0].other(x)), (X,)


@case
def a_default_of_forward(changed: bool) -> Iterator[Any]:
    with patched(Doubles.forward, "__defaults__", (3.0,), when=changed):
        yield Holds(nn.ModuleList([Doubles()]), lambda held, x: held[0](x)), (X,)


@case
def a_compiled_part(changed: bool) -> Iterator[Any]:
    part = _seeded(lambda: Net(nn.Sigmoid() if changed else nn.Tanh()))
    yield Holds(nn.ModuleList([torch.compile(part, backend="eager")]), lambda held, x: held[0](x)), (X,)


@case
def a_part_that_is_compiled_in_place(changed: bool) -> Iterator[Any]:
    part = _seeded(lambda: Net(nn.Sigmoid() if changed else nn.Tanh()))
    part.compile(backend="eager")
    yield Holds(nn.ModuleList([part]), lambda held, x: held[0](x)), (X,)


@case
def a_part_that_is_compiled_now(changed: bool) -> Iterator[Any]:
    part: Any = _seeded(lambda: Net(nn.Sigmoid() if changed else nn.Tanh()))
    if changed:
        part = torch.compile(part, backend="eager")
    yield Holds(nn.ModuleList([part]), lambda held, x: held[0](x)), (X,)


@torch.compiler.disable
def not_compiled(x: torch.Tensor) -> torch.Tensor:
    return x * _FACTOR


_FACTOR = 2.0


def breaks_for_it(x: torch.Tensor) -> torch.Tensor:
    return not_compiled(x + 1) + 1


@case
def what_a_function_that_is_not_compiled_reads(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "_FACTOR", 3.0, when=changed):
        yield breaks_for_it, (X,)


@case
def a_function_that_is_not_compiled(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "not_compiled", torch.compiler.disable(lambda x: x * 3), when=changed):
        yield breaks_for_it, (X,)


@case
def a_function_that_is_compiled_now(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "not_compiled", lambda x: x * 3, when=changed):
        yield breaks_for_it, (X,)


# Hooks.


def _hooked(register: Callable[[nn.Module], Any]) -> nn.Module:
    net = Net(nn.GELU())
    register(net.first)
    return net


class Scales:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def hook(self, _: object, __: object, result: torch.Tensor) -> torch.Tensor:
        return result * self.factor

    def __call__(self, _: object, __: object, result: torch.Tensor) -> torch.Tensor:
        return result * self.factor


def _scales(_: object, __: object, result: torch.Tensor, *, by: float) -> torch.Tensor:
    return result * by


for _what, _make in {
    "method": lambda factor: Scales(factor).hook,
    "object": Scales,
    "partial": lambda factor: functools.partial(_scales, by=factor),
    "closure": lambda factor: lambda _, __, result: result * factor,
}.items():
    _model(
        f"a_hook_that_is_a_{_what}",
        lambda m=_make: _hooked(lambda part: part.register_forward_hook(m(2.0))),
        lambda m=_make: _hooked(lambda part: part.register_forward_hook(m(3.0))),
    )
_model(
    "hooks_in_another_order",
    lambda: _hooked(
        lambda part: (part.register_forward_hook(double), part.register_forward_hook(lambda m, i, r: r + 1))
    ),
    lambda: _hooked(
        lambda part: (
            part.register_forward_hook(double),
            part.register_forward_hook(lambda m, i, r: r + 1, prepend=True),
        )
    ),
)
_model(
    "a_hook_that_is_always_called",
    lambda: _hooked(lambda part: part.register_forward_hook(double)),
    lambda: _hooked(lambda part: part.register_forward_hook(triple, always_call=True)),
)


@case
def a_hook_of_keywords(changed: bool) -> Iterator[Any]:
    def first(_: object, inputs: Any, keywords: Any) -> Any:
        return inputs, {"factor": 3.0 if changed else 2.0}

    part = Doubles()
    part.register_forward_pre_hook(first, with_kwargs=True)
    yield Holds(nn.ModuleList([part]), lambda held, x: held[0](x)), (X,)


def _differentiated(_: object, gradients: Any, __: Any) -> Any:
    return tuple(each * 2 for each in gradients)


@case
def a_hook_of_the_backward_pass(changed: bool) -> Iterator[Any]:
    part = Doubles()
    if changed:
        part.register_full_backward_hook(_differentiated)
        part.register_forward_hook(triple)
    yield Holds(nn.ModuleList([part]), lambda held, x: held[0](x)), (X.clone().requires_grad_(),)


# What torch hangs on parts.


def _quietly(build: Callable[[], Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return build()


_model(
    "a_weight_that_is_normalised_by_a_hook",
    lambda: _quietly(lambda: nn.utils.weight_norm(nn.Linear(4, 4), dim=0)),
    lambda: _quietly(lambda: nn.utils.weight_norm(nn.Linear(4, 4), dim=1)),
)
_model(
    "a_spectral_norm_of_other_steps",
    lambda: nn.utils.spectral_norm(nn.Linear(4, 4), n_power_iterations=1).train(),
    lambda: nn.utils.spectral_norm(nn.Linear(4, 4), n_power_iterations=3).train(),
)
_model(
    "a_parametrised_spectral_norm",
    lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4), n_power_iterations=1).train(),
    lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4), n_power_iterations=3).train(),
)
_model(
    "a_pruned_weight",
    lambda: nn.Sequential(nn.Linear(4, 4)),
    lambda: nn.Sequential(torch.nn.utils.prune.random_unstructured(nn.Linear(4, 4), "weight", amount=0.5)),
)
_model("another_probability", lambda: nn.Dropout(0.0).train(), lambda: nn.Dropout(1.0).train())
_model("another_epsilon", lambda: nn.LayerNorm(4, eps=1e-5), lambda: nn.LayerNorm(4, eps=1.0))
_model("another_momentum", lambda: Statistics(0.1), lambda: Statistics(0.5))
_model(
    "a_norm_without_statistics",
    lambda: nn.BatchNorm1d(4).eval(),
    lambda: nn.BatchNorm1d(4, track_running_stats=False).eval(),
)
_model("another_padding", lambda: nn.ConstantPad1d(1, 2.0), lambda: nn.ConstantPad1d(1, 3.0))
_model("another_approximation", lambda: nn.GELU(), lambda: nn.GELU(approximate="tanh"))
_model("another_dimension", lambda: nn.Softmax(0), lambda: nn.Softmax(1))
_model("another_number_of_groups", lambda: nn.GroupNorm(1, 4), lambda: nn.GroupNorm(2, 4))
_model("a_layer_that_was_lazy", lambda: _built(nn.LazyLinear(4)), lambda: _built(nn.LazyLinear(5)))
_model("a_padding_index", lambda: Embeds(None), lambda: Embeds(1.0))


class Statistics(nn.Module):
    def __init__(self, momentum: float) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4, momentum=momentum)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.norm(x)
        return x * self.norm.running_mean


class Embeds(nn.Module):
    def __init__(self, longest: float | None) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 4, max_norm=longest)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.table(torch.arange(4))


def _built(layer: nn.Module) -> nn.Module:
    layer(X)
    return layer


# What is noted on tensors, and what they say of themselves.


# Of a tensor that something holds.
_given = functools.partial(given, within=lambda ask, tensor: (ask, (X, Wrapped(tensor))))


class Wrapped:
    """Holds a tensor, so that it reaches a function as it is."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


def _noted(**attributes: Any) -> torch.Tensor:
    tensor = torch.ones(4)
    for name, value in attributes.items():
        setattr(tensor, name, value)
    return tensor


_given("a_note_on_a_tensor", lambda: _noted(factor=2.0), lambda: _noted(factor=3.0), lambda x, t: x * t.tensor.factor)
_given(
    "a_note_that_a_tensor_has",
    lambda: _noted(),
    lambda: _noted(is_expert=True),
    lambda x, t: x * (3 if hasattr(t.tensor, "is_expert") else 2),
)
_given(
    "a_note_with_a_default",
    lambda: _noted(),
    lambda: _noted(factor=3.0),
    lambda x, t: x * getattr(t.tensor, "factor", 2.0),
)
_given(
    "an_offset_into_a_storage",
    lambda: torch.ones(8)[:4],
    lambda: torch.ones(8)[4:],
    lambda x, t: x * (2 + t.tensor.storage_offset()),
)
_given(
    "a_tensor_that_is_contiguous",
    lambda: torch.ones(4, 4),
    lambda: torch.ones(4, 8)[:, ::2],
    lambda x, t: x * (2 if t.tensor.is_contiguous() else 3),
)
_given(
    "a_format_of_memory",
    lambda: torch.ones(1, 2, 2, 2),
    lambda: torch.ones(1, 2, 2, 2).to(memory_format=torch.channels_last),
    lambda x, t: x * (2 if t.tensor.is_contiguous(memory_format=torch.channels_last) else 3),
)
_given(
    "a_tensor_with_a_gradient",
    lambda: _with_gradient(None),
    lambda: _with_gradient(torch.ones(4)),
    lambda x, t: x * (2 if t.tensor.grad is None else 3),
)
_given(
    "a_size_of_a_gradient",
    lambda: _with_gradient(torch.ones(4)),
    lambda: _with_gradient(torch.ones(4) * 2),
    lambda x, t: x * t.tensor.grad,
)
_given(
    "a_tensor_that_is_a_leaf",
    lambda: torch.ones(4, requires_grad=True),
    lambda: torch.ones(4, requires_grad=True) * 1,
    lambda x, t: x * (2 if t.tensor.is_leaf else 3),
)
_given(
    "a_function_of_a_gradient",
    lambda: torch.ones(4),
    lambda: torch.ones(4, requires_grad=True) * 1,
    lambda x, t: x * (2 if t.tensor.grad_fn is None else 3),
)
_given(
    "a_version_of_a_tensor",
    lambda: torch.ones(4),
    lambda: torch.ones(4).add_(1),
    lambda x, t: x * (2 + t.tensor._version),
)
_given(
    "a_conjugate",
    lambda: torch.ones(4, dtype=torch.complex64),
    lambda: torch.ones(4, dtype=torch.complex64).conj(),
    lambda x, t: x * (2 if t.tensor.is_conj() else 3),
)
_given(
    "a_tensor_that_is_shared",
    lambda: torch.ones(4),
    lambda: torch.ones(4).share_memory_(),
    lambda x, t: x * (3 if t.tensor.is_shared() else 2),
)
_given(
    "a_tensor_that_is_a_view",
    lambda: torch.ones(4),
    lambda: torch.ones(8)[:4],
    lambda x, t: x * (3 if t.tensor._is_view() else 2),
)
_given(
    "an_address_that_is_aligned",
    lambda: torch.ones(8)[:4],
    lambda: torch.ones(8)[1:5],
    lambda x, t: x * (2 + t.tensor.data_ptr() % 8),
)
_given(
    "bytes_of_a_storage",
    lambda: torch.ones(4),
    lambda: torch.ones(8)[:4],
    lambda x, t: x * t.tensor.untyped_storage().nbytes(),
)
_given(
    "a_storage_that_is_typed",
    lambda: torch.ones(4),
    lambda: torch.ones(8)[:4],
    lambda x, t: x * len(t.tensor.storage()),
)
_given(
    "a_class_of_a_tensor",
    lambda: torch.ones(4),
    lambda: nn.Parameter(torch.ones(4), requires_grad=False),
    lambda x, t: x * (3 if isinstance(t.tensor, nn.Parameter) else 2),
)
_given(
    "a_buffer_as_a_class",
    lambda: torch.ones(4),
    lambda: nn.Buffer(torch.ones(4)),
    lambda x, t: x * (3 if isinstance(t.tensor, nn.Buffer) else 2),
    register=case,
)
_given("sizes_that_are_one", lambda: torch.ones(1, 4), lambda: torch.ones(3, 4), lambda x, t: x * t.tensor.shape[0])
_given(
    "a_tensor_of_another_rank", lambda: torch.ones(1, 4), lambda: torch.ones(1, 1, 4), lambda x, t: x * t.tensor.dim()
)
_given(
    "a_sparse_tensor",
    lambda: torch.eye(4),
    lambda: torch.eye(4).to_sparse(),
    lambda x, t: x * (3 if t.tensor.is_sparse else 2),
)
_given(
    "a_tensor_of_integers",
    lambda: torch.ones(4),
    lambda: torch.ones(4, dtype=torch.int32),
    lambda x, t: x * (3 if t.tensor.is_floating_point() else 2),
)
_given(
    "an_element_size",
    lambda: torch.ones(4),
    lambda: torch.ones(4, dtype=torch.float64),
    lambda x, t: x * t.tensor.element_size(),
)
_given(
    "a_name_of_a_function_of_a_gradient",
    lambda: torch.ones(4, requires_grad=True) * 1,
    lambda: torch.ones(4, requires_grad=True) + 1,
    lambda x, t: x * len(t.tensor.grad_fn.name() + str("Add" in t.tensor.grad_fn.name())),
)


def _with_gradient(gradient: torch.Tensor | None) -> torch.Tensor:
    tensor = torch.ones(4, requires_grad=True)
    tensor.grad = gradient
    return tensor


_TENSOR = torch.ones(4)


@case
def a_tensor_among_globals(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "_TENSOR", torch.ones(4) * 3, when=changed):
        yield lambda x: x * _TENSOR, (X,)


@case
def a_type_of_a_tensor_among_globals(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "_TENSOR", torch.ones(4, dtype=torch.float64), when=changed):
        yield lambda x: x * _TENSOR, (X,)


@case
def numbers_of_which_a_tensor_is_made(changed: bool) -> Iterator[Any]:
    numbers = [3.0 if changed else 2.0]
    yield Calls(lambda x, numbers: x * torch.tensor(numbers), numbers), (X,)


class Duck:
    factor = 2.0

    @classmethod
    def __torch_function__(cls, function: Any, kinds: Any, arguments: Any = (), keywords: Any = None) -> Any:
        return arguments[0] * cls.factor


@more
def what_overrides_torch_functions(changed: bool) -> Iterator[Any]:
    with patched(Duck, "factor", 3.0, when=changed):
        yield lambda x, duck: torch.add(x, duck), (X, Duck())


@case
def an_operator_of_tensors(changed: bool) -> Iterator[Any]:
    with patched(torch.Tensor, "__add__", lambda self, other: self * 3, when=changed):
        yield lambda x: x + 1, (X,)


@case
def an_item_of_tensors(changed: bool) -> Iterator[Any]:
    with patched(torch.Tensor, "__getitem__", lambda self, item: self * 3, when=changed):
        yield lambda x: x[0], (X,)


@case
def a_new_method_of_tensors(changed: bool) -> Iterator[Any]:
    torch.Tensor.hazard = (lambda self: self * 3) if changed else (lambda self: self * 2)  # type: ignore[attr-defined]
    yield lambda x: x.hazard(), (X,)
    del torch.Tensor.hazard  # type: ignore[attr-defined]


@case
def a_linear_function_of_torch(changed: bool) -> Iterator[Any]:
    with patched(F, "linear", lambda x, w, b=None: x * 3, when=changed):
        yield Holds(nn.ModuleList([_seeded(lambda: nn.Linear(4, 4))]), lambda held, x: held[0](x)), (X,)


@case
def a_function_of_attention(changed: bool) -> Iterator[Any]:
    with patched(F, "scaled_dot_product_attention", lambda q, k, v, **_: v * 3, when=changed):
        yield lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]), (X,)


# Functions of autograd and higher-order operators.


def conditional(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 100, lambda y: y + 1, BRANCH, (x,))


def BRANCH(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def _other_branch(x: torch.Tensor) -> torch.Tensor:
    return x * 3


@case
def a_branch_of_a_condition(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "BRANCH", _other_branch, when=changed):
        yield conditional, (X,)


def checkpointed(x: torch.Tensor) -> torch.Tensor:
    return torch.utils.checkpoint.checkpoint(BRANCH, x, use_reentrant=False)


@case
def a_function_that_is_computed_again(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "BRANCH", _other_branch, when=changed):
        yield checkpointed, (X,)


@case
def a_dimension_of_a_map(changed: bool) -> Iterator[Any]:
    yield lambda x, n: torch.vmap(lambda row: row * row.shape[0], in_dims=n.value)(x), (X, Box(1 if changed else 0))


@case
def what_a_model_is_called_with(changed: bool) -> Iterator[Any]:
    net = _seeded(lambda: nn.Linear(4, 4))
    weights = {"weight": torch.ones(4, 4)} if changed else {"weight": torch.ones(4, 4), "bias": torch.ones(4)}
    yield lambda x, held: torch.func.functional_call(held.value[0], held.value[1], (x,)), (X, Box((net, weights)))


# Trees.


class Node:
    def __init__(self, first: Any, second: Any) -> None:
        self.first, self.second = first, second


def _registered(changed: bool) -> None:
    def flatten(node: Node) -> Any:
        return [node.second if changed else node.first], None

    if Node in _pytree.SUPPORTED_NODES:
        _pytree._deregister_pytree_node(Node)
    _pytree.register_pytree_node(Node, flatten, lambda leaves, _: Node(leaves[0], 0.0))


@case
def how_a_node_of_trees_is_flattened(changed: bool) -> Iterator[Any]:
    _registered(changed)
    yield lambda x, held: x * _pytree.tree_leaves(Node(held.value, 3.0))[0], (X, Box(2.0))


@case
def a_node_of_trees_that_is_not_registered(changed: bool) -> Iterator[Any]:
    _registered(False)
    if changed:
        _pytree._deregister_pytree_node(Node)
    yield (
        lambda x, held: (
            x
            * (1 + len(_pytree.tree_leaves([Node(1.0, 3.0), 2.0])))
            * (2 if isinstance(_pytree.tree_leaves(Node(1.0, 2.0))[0], float) else 3)
        ),
        (X, Box(2.0)),
    )


# Operators of libraries.

_SCALE = 2.0


@torch.library.custom_op("hazards::scaled", mutates_args=())
def scaled_operator(x: torch.Tensor) -> torch.Tensor:
    return x * _SCALE


@scaled_operator.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def _backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
    return gradient * _SCALE


scaled_operator.register_autograd(_backward)


@case
def what_an_operator_computes(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "_SCALE", 3.0, when=changed):
        yield lambda x: scaled_operator(x) + 1, (X,)


@case
def an_operator_by_its_name(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "_SCALE", 3.0, when=changed):
        yield lambda x: torch.ops.hazards.scaled(x) + 1, (X,)


@case
def another_function_of_a_recurrent_cell(changed: bool) -> Iterator[Any]:
    torch.manual_seed(0)
    yield nn.RNNCell(4, 4, nonlinearity="relu" if changed else "tanh"), (X,)


class Copied:
    """A configuration of a model."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


@case
def an_object_of_whose_class_one_was_copied(changed: bool) -> Iterator[Any]:
    held = Copied(2.0)
    if changed:
        # Python notes in the class which slots it has.
        copy.deepcopy(held)
    yield Calls(lambda x, held: held.apply(x), held), (X + changed,)
