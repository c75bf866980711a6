"""Canaries of torch_internals/kernel_compiles.py."""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys

import pytest

from compilefarm.torch_internals.kernel_compiles import look_at_gpu

_ASSEMBLERS = """
import importlib, os
from compilefarm.torch_internals.kernel_compiles import start_processes, use_assembler_of_processes
use_assembler_of_processes()
here = os.environ.pop("TRITON_PTXAS_PATH", "")
compiling = importlib.import_module("torch._inductor.async_compile")
start_processes()
there = compiling.AsyncCompile.process_pool().submit(os.getenv, "TRITON_PTXAS_PATH", "").result(timeout=120)
compiling.shutdown_compile_workers()
print([here, there])
"""


@pytest.mark.compiles
def test_kernels_are_assembled_alike_here_and_where_they_are_compiled() -> None:
    variables = {name: value for name, value in os.environ.items() if name != "TRITON_PTXAS_PATH"}
    command = [sys.executable, "-W", "ignore", "-c", _ASSEMBLERS]
    said = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    here, there = ast.literal_eval(said.stdout.splitlines()[-1])
    assert here == there, "use_assembler_of_processes sets what torch/_inductor/compile_worker sets"


def test_the_gpu_is_looked_at_before_processes_start() -> None:
    # Without a GPU nothing is done.
    look_at_gpu()
    assert callable(importlib.import_module("torch._inductor.async_compile").pre_fork_setup)
