"""Canaries of torch_internals/triton_kernels.py, and of what graph/triton_kernels.py reads of kernels."""

from __future__ import annotations

import pytest

from compilefarm.graph.triton_kernels import _CONFIGURED
from compilefarm.torch_internals import triton_kernels

triton = pytest.importorskip("triton")


def _no_kernel(x: int, y: int) -> None:
    """Triton reads its source."""


def test_launches_of_triton_kernels() -> None:
    # A higher-order operator and a table for the process.
    assert triton_kernels.launch_operator().name() == "triton_kernel_wrapper_mutation"
    constants, table = {"count": 3}, triton_kernels.kernel_table()
    assert table.get_constant_args(table.add_constant_args(constants)) == constants
    kernel = triton.jit(_no_kernel)
    assert table.get_kernel(table.add_kernel(kernel)) is kernel


def test_kernels_are_told_by_what_made_them() -> None:
    kernel = triton.jit(_no_kernel)
    tuned = triton.autotune([triton.Config({})], key=["y"])(kernel)
    in_python = triton.constexpr_function(_no_kernel)
    asked = (triton_kernels.is_jit_function, triton_kernels.is_autotuner, triton_kernels.is_constexpr_function)
    assert [[is_one(made) for is_one in asked] for made in (kernel, tuned, in_python)] == [
        [True, False, False],
        [False, True, False],
        [False, False, True],
    ]


def test_what_triton_keeps_of_a_kernel() -> None:
    # triton/runtime/jit.py and triton/runtime/autotuner.py
    kernel = triton.jit(_no_kernel, do_not_specialize=["x"], noinline=True)
    assert kernel.src.startswith("def _no_kernel(x: int")
    assert (kernel.pre_run_hooks, kernel.noinline, kernel.fn) == ([], True, _no_kernel)
    assert [given.do_not_specialize for given in kernel.params] == [True, False]
    assert [given.do_not_specialize_on_alignment for given in kernel.params] == [False, False]
    tuner = triton.autotune([triton.Config({"x": 1})], key=["y"])(kernel)
    assert (tuner.fn, tuner.base_fn, tuner.keys, tuner.restore_value) == (kernel, _no_kernel, ["y"], [])
    assert (tuner.user_defined_pre_hook, tuner.user_defined_post_hook) == (False, False)
    assert (tuner.perf_model, tuner.early_config_prune) == (None, None)
    assert {"kwargs", *_CONFIGURED} <= vars(tuner.configs[0]).keys()
