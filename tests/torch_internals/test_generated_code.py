"""Canaries of torch_internals/generated_code.py: those who write sources write these."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from types import CodeType

import pytest
import torch

from compilefarm.loader import wrappers
from compilefarm.torch_internals.generated_code import (
    DEVICE_GUARD,
    IMPORTS_COMPUTED,
    MODULES_IMPORTED,
    measuring_if_possible,
    operators_with_kernels,
    telling_sources,
)


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


def test_all_that_is_generated_is_written_by_one_function() -> None:
    # torch/_inductor/codecache.py. What is compiled or run without it would not be looked at by
    # builder/generated_sources.py.
    cache = importlib.import_module("torch._inductor.codecache")
    assert list(inspect.signature(cache.write).parameters)[:2] == ["content", "extension"]
    for writer in (cache.PyCodeCache.write, cache.PyCodeCache.load, cache.CppCodeCache.load_async):
        function = inspect.unwrap(getattr(writer, "__func__", writer))
        names = {*function.__code__.co_names, *(name for each in _closure_codes(function) for name in each.co_names)}
        assert "write" in names, writer
    submit = importlib.import_module("torch._inductor.async_compile").AsyncCompile.triton
    assert list(inspect.signature(submit).parameters)[:3] == ["self", "kernel_name", "source_code"]


def _closure_codes(function: Callable[..., object]) -> Iterator[CodeType]:
    # cpp_builds.stand_in_for_builds stands in for CppCodeCache.load_async.
    for cell in getattr(function, "__closure__", None) or ():
        if hasattr(cell.cell_contents, "__code__"):
            yield cell.cell_contents.__code__


def test_a_source_is_told_before_it_lies_in_a_file() -> None:
    cache, told = importlib.import_module("torch._inductor.codecache"), []

    def refuse(content: str | bytes, extension: str) -> None:
        told.append((content, extension))
        raise PermissionError

    with telling_sources(written=refuse, of_kernel=told.append, of_tuning=told.append), pytest.raises(PermissionError):
        cache.PyCodeCache.write("answer = 44")
    assert told == [("answer = 44", "py")]


def test_wrappers_are_written_as_they_are_read() -> None:
    """wrappers.py and kernels.py know Inductor's texts; here they come from those who write them."""
    module = importlib.import_module("torch._inductor.codegen.cuda.device_op_overrides")
    overrides = module.CUDADeviceOpOverrides()
    guard, switch = overrides.device_guard(0), overrides.set_device(0)
    assert wrappers.moved_wrapper(f"with {guard}:\n    {switch}\n", device=3) == (
        f"with {overrides.device_guard(3)}:\n    {overrides.set_device(3)}\n"
    )
    device = torch.device("cuda", 0)
    for text in (repr(device), repr(str(device))):
        assert wrappers.moved_wrapper(text, device=3) == text.replace("0", "3")
    module = importlib.import_module("torch._inductor.codegen.wrapper")
    wrapper = inspect.getsource(module)
    assert list(inspect.signature(module.PythonWrapperCodegen.generate_and_run_autotune_block).parameters) == ["self"]
    for text in (
        "self.kernel_autotune_defs =",
        "self.kernel_autotune_calls =",
        "get_raw_stream({",
        "async_compile = AsyncCompile()",
        "async_compile.wait(globals())",
        "del async_compile",
        "def get_args(",
        "def benchmark_compiled_module(",
    ):
        assert text in wrapper, f"wrappers.py or kernels.py looks for {text}"
    kernel = inspect.getsource(importlib.import_module("torch._inductor.codegen.triton"))
    assert "async_compile.triton(" in kernel, "kernels.py takes these out of a wrapper"
    importlib.import_module("torch._inductor.kernel.mm")
    assert callable(operators_with_kernels().mm), "what is left of extern_kernels comes from torch"


def test_kernels_that_cannot_be_measured_are_left_for_their_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("torch._inductor.codegen.wrapper")
    said = "Failed to run autotuning code block"
    assert said in inspect.getsource(module.PythonWrapperCodegen.generate_and_run_autotune_block)

    def measure(message: str) -> None:
        raise RuntimeError(message)

    monkeypatch.setattr(module.PythonWrapperCodegen, "generate_and_run_autotune_block", measure)
    with measuring_if_possible():
        module.PythonWrapperCodegen.generate_and_run_autotune_block(f"{said}: CUDA driver error: invalid argument")
        with pytest.raises(RuntimeError, match="another"):
            module.PythonWrapperCodegen.generate_and_run_autotune_block("another")
    assert module.PythonWrapperCodegen.generate_and_run_autotune_block is measure


def test_kernels_are_not_left_where_the_gpu_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    wrapper = importlib.import_module("torch._inductor.codegen.wrapper").PythonWrapperCodegen

    def fail(_: object = None) -> None:
        raise RuntimeError("Failed to run autotuning code block: device-side assert triggered")

    monkeypatch.setattr(wrapper, "generate_and_run_autotune_block", fail)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", fail)
    with measuring_if_possible(), pytest.raises(RuntimeError, match="device-side assert"):
        wrapper.generate_and_run_autotune_block(None)
