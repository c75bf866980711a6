"""Keys of packages: equal for equal models in any process, and another one after whatever decides what Dynamo finds."""

from __future__ import annotations

import copy
import functools
import gc
import inspect
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from google._upb._message import SetAllowOversizeProtos
from torch import nn
from torch.nn import functional as F
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils import parametrize

from compilefarm.graph.bypass import Bypass
from compilefarm.packages.descriptions import Undescribable
from compilefarm.packages.lookup_keys import LookupKey
from tests.lean import LEAN
from tests.packages import models
from tests.packages.models import key_of

Change = Callable[[models.Model, pytest.MonkeyPatch], object]


def differing(first: LookupKey, second: LookupKey) -> set[str]:
    assert (first.text == second.text) == (first.parts == second.parts)
    return {mine.name for mine, other in zip(first.parts, second.parts, strict=True) if mine != other}


def activation(x: torch.Tensor) -> torch.Tensor:
    return F.relu(x)


class Adapter(nn.Module):
    """What LoRA makes of a linear layer."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.down, self.up = nn.Linear(4, 1), nn.Linear(1, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.down(x))


class Halved(nn.Module):
    """A parametrization."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / 2


class Derived(models.Block):
    """A block that does the same."""


def edited(function: Any, old: str, new: str) -> Any:
    """A function of the module of models as if its source had been edited."""
    source = inspect.getsource(function)
    assert old in source
    made: dict[str, Any] = {}
    exec(inspect.cleandoc(source).replace(old, new), vars(models) | made, made)
    return made[function.__name__]


def with_share(value: float) -> property:
    return property(lambda self: value)


def fail(self: nn.Module, name: str) -> object:
    raise AttributeError(name)


def closing_over(value: float) -> Callable[..., torch.Tensor]:
    return lambda module, inputs, output: output * value


def to_channels_last(model: models.Model) -> None:
    model.head.weight.data = torch.zeros(4, 2).t()


# What changes, and the part of the key that says so.
CHANGES: dict[str, tuple[str, Change]] = {
    "another activation function": ("attributes", lambda model, _: setattr(model.blocks[0], "activation", F.relu)),
    "an activation of the user's": ("attributes", lambda model, _: setattr(model.blocks[0], "activation", activation)),
    "a module in place of another": (
        "modules", lambda model, _: model.blocks[0].register_module("drop", nn.Identity())
    ),
    "a module in a list": ("modules", lambda model, _: model.further.append(nn.ReLU())),
    "a constant of a module of torch": ("modules", lambda model, _: setattr(model.blocks[0].drop, "p", 0.5)),
    "training": ("modules", lambda model, _: model.train()),
    "training of one module": ("modules", lambda model, _: model.blocks[1].drop.train()),
    "a subclass": ("modules", lambda model, _: setattr(model.blocks[1], "__class__", Derived)),
    "an adapter": ("modules", lambda model, _: setattr(model.blocks[0], "linear", Adapter(model.blocks[0].linear))),
    "a parametrization": (
        "modules", lambda model, _: parametrize.register_parametrization(model.head, "weight", Halved())
    ),
    "a forward hook": ("hooks", lambda model, _: model.head.register_forward_hook(closing_over(2.0))),
    "a forward hook before": ("hooks", lambda model, _: model.head.register_forward_pre_hook(lambda m, i: i)),
    "a backward hook": ("hooks", lambda model, _: model.head.register_full_backward_hook(lambda m, i, o: i)),
    "a hook removed": ("hooks", lambda model, _: clear_hooks(model.blocks[0])),
    "a hook of a parameter": ("hooks", lambda model, _: model.head.weight.register_hook(torch.neg)),
    "a patched function of a class": (
        "classes", lambda _, patch: patch.setattr(models.Block, "forward", lambda self, x: x)
    ),
    "an edited source": (
        "classes", lambda _, patch: patch.setattr(models.Block, "share", edited_share(models.Block))
    ),
    "a wrapped function edited": (
        "classes", lambda _, patch: patch.setattr(models.Block.forward.__wrapped__, "__code__", shorter.__code__)
    ),
    "a property": ("classes", lambda _, patch: patch.setattr(models.Block, "share", with_share(0.25))),
    "a constant of a class": ("classes", lambda _, patch: patch.setattr(models.Block, "limit", 7.0)),
    "an enumeration in a class": (
        "classes", lambda _, patch: patch.setattr(models.Block, "kind", models.Kind.PLAIN)
    ),
    "__getattr__": ("classes", lambda _, patch: patch.setattr(models.Block, "__getattr__", fail, raising=False)),
    "a rebound function": ("classes", lambda _, patch: patch.setattr(models, "scaled", lambda x: x)),
    "other defaults": ("classes", lambda _, patch: patch.setitem(models.scaled.__kwdefaults__, "factor", 0.75)),
    "a patched function of torch": ("classes", lambda _, patch: patch.setattr(F, "softplus", activation)),
    "a patched call of modules": (
        "classes", lambda _, patch: patch.setattr(nn.Module, "__call__", lambda self, x: self.forward(x))
    ),
    "a patched module of torch": (
        "classes", lambda _, patch: patch.setattr(nn.Linear, "forward", lambda self, x: F.linear(x, self.weight))
    ),
    "an own forward": (
        "attributes",
        lambda model, _: setattr(model.head, "forward", functools.partial(F.linear, weight=torch.ones(2, 4))),
    ),
    "a method of another object": (
        "attributes", lambda model, _: setattr(model.head, "forward", model.blocks[0].linear.forward)
    ),
    "an own constant in place of the class's": ("attributes", lambda model, _: setattr(model.blocks[0], "limit", 1.0)),
    "another dtype": ("tensors", lambda model, _: model.to(torch.bfloat16)),
    "another shape": ("tensors", lambda model, _: setattr(model.blocks[0], "offset", torch.zeros(1))),
    "other strides": ("tensors", lambda model, _: to_channels_last(model)),
    "a frozen weight": ("tensors", lambda model, _: model.head.weight.requires_grad_(False)),
    "a shared weight": (
        "tensors", lambda model, _: setattr(model.blocks[1].linear, "weight", model.blocks[0].linear.weight)
    ),
    "a parameter that is a buffer": ("tensors", lambda model, _: as_buffer(model.head)),
    "no bias": ("tensors", lambda model, _: model.blocks[0].linear.register_parameter("bias", None)),
    "another device": ("tensors", lambda model, _: model.to_empty(device="meta")),
}  # fmt: skip


def shorter(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return x


def edited_share(kind: type) -> property:
    return property(edited(inspect.getattr_static(kind, "share").fget, "0.5", "0.25"))


def clear_hooks(module: nn.Module) -> None:
    module.__dict__["_forward_hooks"].clear()


def as_buffer(head: nn.Linear) -> None:
    weight = head.weight.detach()
    del head.weight
    head.register_buffer("weight", weight)


@pytest.fixture
def model() -> models.Model:
    return models.ready()


@pytest.mark.parametrize("name", CHANGES)
def test_whatever_is_another_model_has_another_key(
    name: str, model: models.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    part, change = CHANGES[name]
    before = key_of(model)
    assert key_of(models.ready()) == before
    change(model, monkeypatch)
    assert part in differing(before, key_of(model))


def test_how_torch_compile_was_called_is_in_the_key(model: models.Model) -> None:
    assert differing(key_of(model), key_of(model, settings="mode=max-autotune")) == {"function"}


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
def test_the_state_of_the_process_is_in_the_key(model: models.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    before = key_of(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert differing(before, key_of(model)) == {"state"}
    with torch.inference_mode():
        assert differing(before, key_of(model)) == {"state"}
    with torch.no_grad():
        assert differing(before, key_of(model)) == {"state"}
    torch.set_default_dtype(torch.float64)
    try:
        assert differing(before, key_of(model)) == {"state"}
    finally:
        torch.set_default_dtype(torch.float32)
    torch.set_num_threads(torch.get_num_threads() + 1)
    assert differing(before, key_of(model)) == {"state"}


def test_settings_of_torchs_compilers_are_in_the_key(model: models.Model) -> None:
    import torch._dynamo
    import torch._inductor.config

    before = key_of(model)
    with torch._dynamo.config.patch(specialize_int=True):
        assert differing(before, key_of(model)) == {"dynamo"}
    with torch._inductor.config.patch(epilogue_fusion=False):
        assert differing(before, key_of(model)) == {"options"}
    with torch._dynamo.config.patch(verbose=True):
        assert key_of(model) == before


def test_hooks_of_all_modules_are_in_the_key(model: models.Model) -> None:
    before = key_of(model)
    handle = register_module_forward_hook(closing_over(1.0))
    try:
        assert differing(before, key_of(model)) == {"hooks"}
    finally:
        handle.remove()
    assert key_of(model) == before


def test_what_a_hook_closes_over_is_in_the_key() -> None:
    keys = []
    for value in (1.0, 2.0, 1.0):
        linear = nn.Linear(2, 2)
        linear.register_forward_hook(closing_over(value))
        keys.append(key_of(linear))
    assert differing(keys[0], keys[1]) == {"hooks"}
    assert keys[0] == keys[2]


def test_a_function_brings_the_models_and_functions_that_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key_of(models.step)
    models.MODEL.train()
    try:
        assert differing(before, key_of(models.step)) == {"modules"}
    finally:
        models.MODEL.eval()
    assert key_of(models.step) == before
    monkeypatch.setattr(models, "finish", lambda x: x)
    assert "function" in differing(before, key_of(models.step))


def test_models_that_a_function_closes_over_or_is_called_with_are_in_the_key(model: models.Model) -> None:
    def over(held: nn.Module) -> Callable[..., Any]:
        return lambda x: held(x)

    def call(module: nn.Module, x: torch.Tensor) -> Any:
        return module(x)

    closing, called = key_of(over(model)), key_of(call, {"module": [model]}, torch.ones(1))
    model.train()
    assert differing(closing, key_of(over(model))) == {"modules"}
    assert differing(called, key_of(call, {"module": [model]}, torch.ones(1))) == {"modules"}


class Pipeline:
    """Holds a model, and is none."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def run(self, x: torch.Tensor) -> Any:
        return self.model(self.prepare(x))

    def prepare(self, x: torch.Tensor) -> torch.Tensor:
        return x


def test_a_method_brings_its_object_and_what_the_class_of_that_does(
    model: models.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = key_of(Pipeline(model).run)
    # Python notes in the class which slots it has.
    copy.copy(Pipeline(model))
    assert key_of(Pipeline(models.ready()).run) == before
    monkeypatch.setattr(Pipeline, "prepare", lambda self, x: x + 1)
    assert differing(before, key_of(Pipeline(model).run)) == {"classes"}
    monkeypatch.undo()
    model.head.register_forward_hook(closing_over(1.0))
    assert differing(before, key_of(Pipeline(model).run)) == {"hooks"}


def test_a_recompiled_source_with_other_lines_and_comments_has_the_same_key(
    model: models.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = key_of(model)
    same = edited(models.scaled, "return x * factor", "# A comment.\n\n    return x * factor")
    same.__module__ = models.__name__
    monkeypatch.setattr(models, "scaled", same)
    assert same.__code__.co_firstlineno != models.ready.__code__.co_firstlineno
    assert key_of(model) == before


REFUSED: dict[str, tuple[str, Callable[[models.Model], object]]] = {
    "TorchScript": (
        "compiled by TorchScript", lambda model: setattr(model.head, "inner", torch.jit.script(nn.Linear(2, 2)))
    ),
    "a lock in a hook": (
        "lock", lambda model: model.head.register_forward_hook(functools.partial(held, threading.Lock()))
    ),
    "a generator of random numbers": (
        "Generator", lambda model: model.head.register_forward_hook(functools.partial(held, torch.Generator()))
    ),
    "an extension that says no version": (
        "says no version", lambda model: setattr(model.head, "forward", SetAllowOversizeProtos)
    ),
}  # fmt: skip


def held(what: object, module: nn.Module, inputs: object, output: Any) -> Any:
    return output


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_said_is_refused_by_name(name: str, model: models.Model) -> None:
    reason, change = REFUSED[name]
    change(model)
    with pytest.raises(Undescribable, match=reason):
        key_of(model)


def test_functions_that_pybind11_made_are_told_by_name(model: models.Model) -> None:
    keys = {key_of(model)}
    for function in (torch.import_ir_module, torch.import_ir_module_from_buffer):
        model.blocks[0].activation = function
        keys.add(key_of(model))
    assert len(keys) == 3


def test_a_process_in_a_state_that_no_farm_compiles_for_has_no_key(model: models.Model) -> None:
    with torch.device("meta"), pytest.raises(Bypass, match="default device"):
        key_of(model)


def test_equal_models_have_equal_keys_in_processes_with_different_hash_seeds() -> None:
    def keys(seed: int) -> str:
        return subprocess.run(
            [sys.executable, LEAN, "-m", "tests.packages.models"],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    first, second = keys(1), keys(4_000_000_000)
    assert first == second
    assert len({line.split()[0] for line in first.splitlines()}) == 3


def test_a_model_is_let_go_without_a_look_for_garbage() -> None:
    model = nn.Linear(4, 3)
    known = weakref.ref(model)
    gc.disable()
    try:
        key_of(model)
        del model
        assert known() is None
    finally:
        gc.enable()
