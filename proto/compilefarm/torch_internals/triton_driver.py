"""Triton's driver of a GPU, and what compiles and launches kernels beside it."""

from __future__ import annotations

import importlib
from typing import Any

DRIVER = "triton.backends.nvidia.driver"


def driver_module() -> Any:
    """The module with what Triton builds in C at run time (triton/backends/nvidia/driver.py)."""
    return importlib.import_module(DRIVER)


def look_at_gpu() -> None:
    """Has Triton's driver look at the current GPU."""
    importlib.import_module("triton.runtime").driver.active.get_current_device()


def read_sources() -> None:
    """Hashes Triton's sources and imports what reads kernels, as is done once in a process that compiles one."""
    # torch/_inductor/runtime/triton_compat.py
    importlib.import_module("torch._inductor.runtime.triton_compat").triton_key()
    importlib.import_module("triton.compiler.code_generator")
