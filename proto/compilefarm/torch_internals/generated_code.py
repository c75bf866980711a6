"""What the sources that Inductor generates import and name (torch/_inductor/codegen/wrapper.py), and where they go."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

log = logging.getLogger(__name__)

# Modules of torch that a wrapper imports as a whole.
MODULES_IMPORTED = frozenset({"torch._inductor.async_compile"})
# Of these the generators write only the names, and compute the modules.
IMPORTS_COMPUTED = frozenset(
    {
        ("torch._inductor.async_compile", "AsyncCompile"),
        ("torch._inductor.runtime.triton_heuristics", "end_graph"),
        ("torch._inductor.runtime.triton_heuristics", "start_graph"),
    }
)
# How Inductor says that kernels could not be measured while they were compiled (torch/_inductor/codegen/wrapper.py).
_NOT_MEASURED = "Failed to run autotuning code block"
# Enters a GPU (torch/_inductor/codegen/cuda/device_op_overrides.py).
DEVICE_GUARD = "torch.cuda._DeviceGuard"


def operators_with_kernels() -> Any:
    """What a wrapper calls `extern_kernels`: operators by their names, as attributes."""
    # torch/_inductor/select_algorithm.py
    return importlib.import_module("torch._inductor.select_algorithm").extern_kernels


@contextmanager
def telling_sources(
    *, written: Callable[[str | bytes, str], None], of_kernel: Callable[[str], None], of_tuning: Callable[[str], None]
) -> Iterator[None]:
    """Inside, every source is told before it is compiled or run; what is raised then goes on to Inductor.

    Args:
        written: is told what is written to a file, and the extension of that.
        of_kernel: is told what goes to processes that compile kernels, which write it there.
        of_tuning: is told what measures kernels while they are compiled; it lies in no file.
    """
    codecache: Any = importlib.import_module("torch._inductor.codecache")
    compiles: Any = importlib.import_module("torch._inductor.async_compile").AsyncCompile
    wrapper: Any = importlib.import_module("torch._inductor.codegen.wrapper").PythonWrapperCodegen
    write, triton, tune = codecache.write, compiles.triton, wrapper.generate_and_run_autotune_block

    # torch/_inductor/codecache.py: PyCodeCache and CppCodeCache write whatever they go on with.
    def write_told(content: str | bytes, extension: str, *args: Any, **kwargs: Any) -> Any:
        written(content, extension)
        return write(content, extension, *args, **kwargs)

    def triton_told(self: Any, kernel_name: str, source_code: str, *args: Any, **kwargs: Any) -> Any:
        of_kernel(source_code)
        return triton(self, kernel_name, source_code, *args, **kwargs)

    def tune_told(self: Any) -> Any:
        of_tuning(f"{self.kernel_autotune_defs.getvalue()}\n{self.kernel_autotune_calls.getvalue()}")
        return tune(self)

    codecache.write, compiles.triton, wrapper.generate_and_run_autotune_block = write_told, triton_told, tune_told
    try:
        yield
    finally:
        codecache.write, compiles.triton, wrapper.generate_and_run_autotune_block = write, triton, tune


@contextmanager
def measuring_if_possible() -> Iterator[None]:
    """Inside, kernels that cannot be measured while they are compiled are left for their first call.

    Torch measures them on inputs that it makes for each, and makes a tensor on the CPU where a program will pass the
    number that is in one. Where the GPU is lost, which a failed assertion does, nothing can be left.
    """
    wrapper: Any = importlib.import_module("torch._inductor.codegen.wrapper").PythonWrapperCodegen
    measure = wrapper.generate_and_run_autotune_block

    def measure_if_possible(self: Any) -> None:
        try:
            measure(self)
        except RuntimeError as error:
            if not str(error).startswith(_NOT_MEASURED):
                raise
            if torch.cuda.is_initialized():
                # Raises what the GPU died of.
                torch.cuda.synchronize()
            log.info("kernels are tuned at their first call: %s", error)

    wrapper.generate_and_run_autotune_block = measure_if_possible
    try:
        yield
    finally:
        wrapper.generate_and_run_autotune_block = measure
