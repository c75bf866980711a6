"""Canaries of torch_internals/generated_code.py: those who write sources write these."""

from __future__ import annotations

import importlib
import inspect

from compilefarm.torch_internals.generated_code import DEVICE_GUARD, IMPORTS_COMPUTED, MODULES_IMPORTED


def test_what_is_imported_is_there() -> None:
    for module in MODULES_IMPORTED:
        importlib.import_module(module)
    for module, name in IMPORTS_COMPUTED:
        assert hasattr(importlib.import_module(module), name)


def test_a_gpu_is_entered_so() -> None:
    module = importlib.import_module("torch._inductor.codegen.cuda.device_op_overrides")
    assert module.CUDADeviceOpOverrides().device_guard(0) == f"{DEVICE_GUARD}(0)"


def test_names_of_these_modules_are_computed() -> None:
    wrapper = inspect.getsource(importlib.import_module("torch._inductor.codegen.wrapper"))
    assert "from {async_compile.__name__} import AsyncCompile" in wrapper
    assert "from {triton_heuristics.__name__} import start_graph, end_graph" in wrapper
