"""Collects the C programs that Triton builds at run time, and builds them before jobs need them."""

from __future__ import annotations

from pathlib import Path

from compilefarm.loader.triton_builds import TritonLibrary, built_modules
from compilefarm.torch_internals.triton_driver import driver_module


def built_libraries() -> list[TritonLibrary]:
    """Returns what Triton has built in this process since `listen_to_builds`, in the order of first use."""
    return [library for library, _ in built_modules()]


def build_driver_module() -> None:
    """Builds the module that every process needs in which Triton launches kernels: a third of a second. It takes a C
    compiler and the library of the GPU's driver, but no GPU.

    To be called after `listen_to_builds`. Nobody need build it again in this process, or in one that is forked from it.
    """
    driver_module().CudaUtils()


def keep_for_others(folder: Path) -> None:
    """Puts what was built so far to where Triton looks for it in processes that this one starts.

    Without that each of them would run a C compiler for its driver module (torch 2.11; later releases need none in
    processes that only compile: skip_gpu_driver_setup in torch/_inductor/runtime/compile_tasks.py).

    Args:
        folder: Triton's cache.
    """
    for library, module in built_modules():
        # triton/runtime/cache.py: there is a folder for each key, which source and machine decide.
        assert module.__file__ is not None
        built = Path(module.__file__)
        kept = folder / built.parent.name / built.name
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(library.content)
