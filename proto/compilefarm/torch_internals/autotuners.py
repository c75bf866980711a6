"""Kernels of Triton as Inductor keeps them (CachingAutotuner in torch/_inductor/runtime/triton_heuristics.py)."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_HEURISTICS = "torch._inductor.runtime.triton_heuristics"
# Of a CompiledKernel of Triton (triton/compiler/compiler.py): what it found out when it was first launched.
_OF_LAUNCHES: Mapping[str, object] = {"_run": None, "_module_pid": None}


def import_launcher() -> None:
    """Imports what launches kernels; a second, most of it for Triton."""
    importlib.import_module(_HEURISTICS)


def is_autotuner(kernel: object) -> bool:
    """Whether what a wrapper calls is a kernel of Triton's in one or several configurations."""
    return isinstance(kernel, importlib.import_module(_HEURISTICS).CachingAutotuner)


def is_launched_by_inductor(result: object) -> bool:
    """Whether Inductor launches a compiled configuration itself, without Triton's launcher."""
    return isinstance(result, importlib.import_module(_HEURISTICS).StaticTritonCompileResult)


def compile_configuration(autotuner: Any, config: Any) -> Any:
    """A configuration of a kernel, compiled or found in Triton's cache."""
    return autotuner._precompile_config(config)


def make_launchers(autotuner: Any) -> None:
    """Puts the configurations of a kernel on the GPU."""
    autotuner._make_launchers()


def forget_source(autotuner: Any) -> None:
    """Drops what would compile a kernel again from its source."""
    autotuner.__dict__.pop("_reload_kernel", None)


def without_launches(kernel: Any) -> dict[str, Any]:
    """The state of a CompiledKernel of Triton as it was before it was first launched."""
    return {**vars(kernel), **_OF_LAUNCHES}


def cache_folder(kernel_hash: str, *, device: int) -> Path:
    """Where Triton keeps what it made of a configuration, in this process's folder."""
    utils = importlib.import_module("torch._inductor.runtime.runtime_utils")
    key = importlib.import_module(_HEURISTICS).triton_hash_to_path_key(kernel_hash)
    return Path(utils.triton_cache_dir(device), key)
