"""The processes in which Inductor compiles Triton kernels (torch/_inductor/async_compile.py)."""

from __future__ import annotations

import importlib

_ASYNC = "torch._inductor.async_compile"


def use_assembler_of_processes() -> None:
    """Has Triton assemble with the same ptxas here as in those processes."""
    # torch/_inductor/compile_worker/__main__.py calls it there.
    importlib.import_module("torch._inductor.runtime.compile_tasks")._set_triton_ptxas_path()


def look_at_gpu() -> None:
    """Looks at the GPU, as is done once before those processes are started."""
    importlib.import_module(_ASYNC).pre_fork_setup()


def start_processes() -> None:
    """Starts them and returns at once."""
    importlib.import_module(_ASYNC).AsyncCompile.use_process_pool()
