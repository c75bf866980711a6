"""The processes in which Inductor compiles Triton kernels side by side."""

from __future__ import annotations

import os
from pathlib import Path

from compilefarm.builder.triton_builds import build_driver_module, keep_for_others
from compilefarm.loader.triton_builds import listen_to_builds
from compilefarm.torch_internals import kernel_compiles, triton_driver
from compilefarm.torch_internals.kernel_compiles import use_assembler_of_processes
from compilefarm.torch_internals.triton_driver import read_sources


def preload() -> None:
    """Does what Triton does once in every process that compiles a kernel and needs no GPU: half a second on an H200.

    That is to build its driver module, to hash its sources, and to import what reads kernels. A process that is forked
    later has it.
    """
    use_their_assembler()
    kernel_compiles.start_longest_first()
    listen_to_builds()
    build_driver_module()
    read_sources()


def use_their_assembler() -> None:
    """Has Triton assemble with the same ptxas here as in those processes; to be called before Triton is used.

    They take the one that torch brings, if it does (torch/_inductor/compile_worker/__main__.py), and everybody else
    takes Triton's. Triton finds compiled kernels by the version of ptxas, among others (CUDABackend.hash in
    triton/backends/nvidia/compiler.py), so that the configurations that those processes had compiled were not found
    when they were to be measured, and were compiled again, one after the other: three matrix products with max-autotune
    took 74 s instead of 22 s on an H200 with torch 2.11, which brings ptxas 13.0 beside Triton's 12.8.
    """
    use_assembler_of_processes()


def prepare() -> None:
    """Looks at the GPU, as Triton and Inductor do once in every process that compiles a kernel, and leaves for those
    processes what `preload` built.
    """
    keep_for_others(Path(os.environ["TRITON_CACHE_DIR"]))
    triton_driver.look_at_gpu()
    kernel_compiles.look_at_gpu()


def start() -> None:
    """Starts those processes and returns at once. They take seconds; until they are ready, kernels are compiled here.

    Inductor starts them with the first kernel otherwise (torch/_inductor/async_compile.py: use_process_pool).
    """
    kernel_compiles.start_processes()
