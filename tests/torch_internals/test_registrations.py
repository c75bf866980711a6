"""Canaries of torch_internals/registrations.py."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch

from compilefarm.torch_internals import registrations

NAME = "torch_internals::halved"


def halved(x: torch.Tensor) -> torch.Tensor:
    return x / 2


def backward(context: object, gradient: torch.Tensor) -> torch.Tensor:
    return gradient / 2


def setting_up(context: object, inputs: object, output: object) -> None:
    """Saves nothing."""


def batched(info: object, dims: object, x: torch.Tensor) -> tuple[torch.Tensor, object]:
    return x / 2, dims


def fake(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@pytest.fixture(scope="module", autouse=True)
def _registered() -> None:
    made = torch.library.custom_op(NAME, halved, mutates_args=())
    made.register_fake(fake)
    made.register_autograd(backward, setup_context=setting_up)
    made.register_vmap(batched)
    made.register_autocast("cpu", torch.bfloat16)

    class Wrapped(torch.Tensor):
        """A subclass with a rule of its own."""

    torch.library.register_torch_dispatch(NAME, Wrapped, ruling)


def ruling(mode: object, func: object, types: object, args: object, kwargs: object) -> None:
    """What is called for the subclass."""


def test_functions_of_a_custom_operator_are_found() -> None:
    assert registrations.is_custom_op(NAME)
    assert not registrations.is_custom_op("aten::add.Tensor")
    found = set(registrations.functions_of_custom_op(NAME))
    assert {halved, fake, backward, setting_up, batched, ruling} <= found
    assert list(registrations.functions_of_custom_op("aten::add.Tensor")) == []


def test_of_these_a_trace_runs_all_but_the_kernel() -> None:
    assert {*registrations.functions_run_by_traces(NAME)} == {fake, backward, setting_up, batched, ruling}
    assert list(registrations.functions_run_by_traces("aten::add.Tensor")) == []


def test_what_autocast_makes_of_arguments_is_found() -> None:
    assert "torch.bfloat16" in str(registrations.autocast_dtypes(NAME))
    assert registrations.autocast_dtypes("aten::add.Tensor") == {}


def test_kernels_for_python_are_found_by_key() -> None:
    with torch.library._scoped_library("torch_internals_python", "FRAGMENT") as library:
        library.define("halved(Tensor x) -> Tensor")
        overload = torch.ops.torch_internals_python.halved.default
        overload.py_impl(torch.DispatchKey.Meta)(fake)
        assert registrations.kernels_for_python(overload) == {"Meta": fake}


def test_a_fake_implementation_is_found() -> None:
    found = registrations.fake_implementation(NAME)
    assert found is not None
    function, where = found
    assert callable(function)
    assert where.rpartition(":")[2].isdigit()


def test_rules_for_subclasses_are_found() -> None:
    assert len(registrations.torch_dispatch_rules(NAME)) == 1


def test_the_dispatcher_says_who_registered_a_kernel() -> None:
    dump = registrations.dispatcher_dump("aten::add.Tensor")
    assert "CPU: registered at" in dump
    assert "debug: registered at" in dump


def test_implementations_from_python_are_kept_by_name() -> None:
    entries = registrations.implementations_from_python()
    assert {entry.count("/") for entry in entries} == {2}
    of_torch = registrations.meta_implementations_of_torch()
    assert of_torch <= entries
    assert len(of_torch) > 500


def test_modules_that_hold_a_library_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    library = torch.library.Library("farm_test_held", "DEF")
    library.define("defined(Tensor x) -> Tensor")
    library.impl("defined", torch.clone, "CPU")
    kernels = torch.library.Library("farm_test_held", "IMPL")
    kernels.impl("defined", torch.empty_like, "Meta")
    for name, held in (("farm_test_one", library), ("farm_test_two", kernels), ("farm_test_three", None)):
        module = ModuleType(name)
        vars(module)["held"] = held
        monkeypatch.setitem(sys.modules, name, module)
    assert registrations.modules_with_libraries_of("farm_test_held::defined") == {"farm_test_one", "farm_test_two"}
    assert not registrations.modules_with_libraries_of("farm_test_held::other")
