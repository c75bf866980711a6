"""Canaries of torch_internals/traced_functions.py."""

from __future__ import annotations

import torch

from compilefarm.graph import targets
from compilefarm.torch_internals import traced_functions
from compilefarm.torch_internals.traced_functions import (
    DATA_OF_TENSOR,
    DISABLE_HOOKS,
    ENTER_AUTOCAST,
    ENTER_DUAL,
    ENTER_GRAD,
    ENTER_INFERENCE,
    ENTER_JVP,
    ENTER_VMAP,
    EXITS,
    FORWARD_SWITCH,
    FUNCTION_MODULES,
    FUNCTORCH_SWITCH,
    GRAD_MODE,
    OF_MODES,
    SDPA_BACKEND,
    SDPA_KERNEL,
    SINGLE_FUNCTIONS,
    SYMBOLIC,
)

_IS_NEWEST = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 15)
# What every model is made of.
COMMON_FUNCTIONS = (
    torch.conv2d,
    torch.cat,
    torch.arange,
    torch.nn.functional.linear,
    torch.nn.functional.gelu,
    torch.nn.functional.silu,
    torch.nn.functional.layer_norm,
    torch.nn.functional.batch_norm,
    torch.nn.functional.max_pool2d,
    torch.nn.functional.embedding,
    torch.nn.functional.dropout,
    torch.nn.functional.scaled_dot_product_attention,
    torch.nn.functional.interpolate,
    torch.linalg.norm,
    torch.fft.rfft,
    torch.special.expit,
    torch.einsum,
)
# Where Dynamo has them elsewhere in older releases: under torch._C, which is listed as well.
_LATER_MODES = {
    f"torch._functorch.predispatch.{name}"
    for name in (
        "_enter_dual_level", "_exit_dual_level", "_jvp_decrement_nesting", "_jvp_increment_nesting", "_make_dual",
        "_unpack_dual", "_unwrap_for_grad",
    )
}  # fmt: skip


def test_dynamos_tables_of_functions() -> None:
    # Without them no function can be named.
    for function in COMMON_FUNCTIONS:
        kind, name = targets.name_target(function)
        assert kind == targets.TORCH_FUNCTION
        assert targets.get_target(kind, name=name) is function


def test_listed_functions_are_loaded_by_their_names() -> None:
    listed = dict(traced_functions.listed_names())
    assert listed["torch.conv2d"] is True
    assert listed["torch.functional._lu_impl"] is False
    assert traced_functions.load_function("torch.conv2d") is torch.conv2d
    assert {name.rpartition(".")[0] for name in listed} >= FUNCTION_MODULES - {"torch.masked._ops"}


def test_usage_log() -> None:
    # Dropped from graphs.
    assert traced_functions.is_usage_log(torch._C._log_api_usage_once)
    assert not traced_functions.is_usage_log(torch.conv2d)


def test_questions() -> None:
    # Dropped from graphs, where nobody uses the answer.
    for function in (torch._C._are_functorch_transforms_active, torch._C._get_cudnn_enabled, torch._C._is_tracing):
        assert traced_functions.is_question(function)
        assert type(function()) is bool
        assert traced_functions.question_named(function.__name__) is function
    assert traced_functions.question_named("_set_grad_enabled") is None
    # Some of what tells of a state is written in Python, or asks a generator of random numbers.
    assert all(map(traced_functions.asks_by_name, ("_get_cudnn_enabled", "is_anomaly_enabled", "initial_seed")))
    assert not traced_functions.asks_by_name("set_grad_enabled")
    assert not [name for name in vars(torch._C) if name.lstrip("_").startswith(("seed", "initial_seed"))]
    assert traced_functions.is_question(torch.cuda.get_device_capability)
    for function in (torch._C._set_grad_enabled, torch.is_complex, torch._C._log_api_usage_once):
        assert not traced_functions.is_question(function)
    assert traced_functions.is_question_of_tensor(torch._C._functorch.is_batchedtensor)
    for function in (torch._C._functorch.get_unwrapped, torch._C._functorch._add_batch_dim, torch.is_complex):
        assert not traced_functions.is_question_of_tensor(function)


def test_bindings_have_twins() -> None:
    for binding, twin in traced_functions.TWINS.items():
        assert twin in OF_MODES
        assert traced_functions.load_function(binding).__name__ == traced_functions.load_function(twin).__name__


def test_grad_mode_switch() -> None:
    # How Dynamo writes torch.no_grad() inside a model.
    switch = traced_functions.load_function(GRAD_MODE)
    assert targets.name_target(switch)[1] == GRAD_MODE
    with torch.enable_grad():
        switch(False)
        assert not torch.is_grad_enabled()


def test_functions_of_symbolic_numbers() -> None:
    assert all(callable(traced_functions.load_function(name)) for name in SYMBOLIC)


def test_functions_of_other_modules_are_listed_and_admitted() -> None:
    listed = {name for name, is_binding in traced_functions.listed_names() if not is_binding}
    assert listed >= SINGLE_FUNCTIONS
    assert targets.target_names()[targets.TORCH_FUNCTION] >= SINGLE_FUNCTIONS


def test_data_of_a_tensor_shares_its_memory() -> None:
    read = targets.get_target(targets.TORCH_FUNCTION, name=DATA_OF_TENSOR)
    tensor = torch.ones(2, requires_grad=True)
    data = read(tensor)  # type: ignore[operator]
    assert (data.data_ptr(), data.requires_grad) == (tensor.data_ptr(), False)


def test_what_enters_and_leaves_modes() -> None:
    # A name that a release lacks is left out without a word, and graphs that hold it are compiled locally.
    known = {name for name in OF_MODES if targets._torch_functions().get(name) is not None}
    assert set(OF_MODES) - known <= (set() if _IS_NEWEST else _LATER_MODES)
    entered = {ENTER_AUTOCAST, ENTER_INFERENCE, ENTER_VMAP, ENTER_GRAD, DISABLE_HOOKS, *ENTER_JVP, *ENTER_DUAL}
    assert entered == EXITS.keys()
    assert {FORWARD_SWITCH, FUNCTORCH_SWITCH, SDPA_BACKEND, SDPA_KERNEL} <= known


def test_autocast_is_entered_and_left() -> None:
    entered = traced_functions.load_function(ENTER_AUTOCAST)("cpu", torch.bfloat16, True, None)
    assert torch.is_autocast_enabled("cpu")
    traced_functions.load_function(EXITS[ENTER_AUTOCAST])(entered)
    assert not torch.is_autocast_enabled("cpu")


def test_functions_taken_for_constants() -> None:
    @torch.compiler.assume_constant_result
    def constant() -> int:
        return 1

    # Else their results would be reused in processes where they differ.
    assert traced_functions.is_taken_for_constant(constant)
    assert not traced_functions.is_taken_for_constant(torch.conv2d)


def test_switches_of_cuda_tell_what_they_are() -> None:
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        for value in (True, False):
            torch.backends.cuda.matmul.allow_tf32 = value
            assert traced_functions.value_switched(torch._C._set_cublas_allow_tf32) is value
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    for name in traced_functions._SWITCHES_OF_CUDA:
        assert isinstance(traced_functions.value_switched(getattr(torch._C, name)), bool)
    assert traced_functions.value_switched(torch._C._set_deterministic_algorithms) is None
