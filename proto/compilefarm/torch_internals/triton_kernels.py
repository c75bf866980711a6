"""Kernels that users write in Triton, and how a graph launches them."""

from __future__ import annotations

import importlib
from typing import Any


def is_autotuner(kernel: object) -> bool:
    """Whether @triton.autotune made it."""
    return type(kernel) is importlib.import_module("triton.runtime").Autotuner


def is_jit_function(kernel: object) -> bool:
    """Whether @triton.jit made it."""
    return type(kernel) is importlib.import_module("triton").JITFunction


def is_constexpr_function(function: object) -> bool:
    """Whether @triton.constexpr_function made it: it runs in Python while a kernel is compiled."""
    # triton/runtime/jit.py
    return type(function) is importlib.import_module("triton.runtime.jit").ConstexprFunction


def launch_operator() -> Any:
    """The higher-order operator that Dynamo writes for a launch."""
    return _wrapping().triton_kernel_wrapper_mutation


def kernel_table() -> Any:
    """The table of this process that has the kernels and constants of launches, by number."""
    return _wrapping().kernel_side_table


def _wrapping() -> Any:
    # Late: it is imported where there is a launch.
    return importlib.import_module("torch._higher_order_ops.triton_kernel_wrap")
