"""The state of a process that a trace depends on, as a description of each part."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch

from compilefarm.reuse.descriptions import Describer
from compilefarm.torch_internals.dynamo_states import (
    configuration_of_dynamo,
    default_device,
    error_on_graph_break,
    forward_mode_level,
    function_modes,
    functorch_levels,
    global_module_hooks,
    global_state_text,
    inference_mode,
    saved_tensors_hooks,
)


def states(describer: Describer) -> dict[str, str]:
    """Describes each part of the state by name."""
    return {name: describe(describer) for name, describe in _STATES.items()}


def require_plain() -> str | None:
    """Returns what is under way in this process that no description would be right for; None if nothing is."""
    for what, is_there in _UNDER_WAY.items():
        if is_there():
            return what
    return None


def variables(names: Iterable[str]) -> dict[str, str]:
    """The environment variables of these names, described."""
    return {name: repr(os.environ.get(name)) for name in names}


def _backends(_: Describer) -> str:
    backends = torch.backends
    facts: dict[str, Any] = {
        "cudnn": [getattr(backends.cudnn, name) for name in ("enabled", "benchmark", "deterministic", "allow_tf32")],
        "matmul": [
            backends.cuda.matmul.allow_tf32,
            backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
            backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
        ],
        "attention": [
            backends.cuda.flash_sdp_enabled(),
            backends.cuda.mem_efficient_sdp_enabled(),
            backends.cuda.math_sdp_enabled(),
            backends.cuda.cudnn_sdp_enabled(),
        ],
        "mkldnn": [backends.mkldnn.enabled, backends.mkldnn.is_available()],
        "precision": torch.get_float32_matmul_precision(),
    }
    return str(facts)


def _devices(_: Describer) -> str:
    if not torch.cuda.is_available():
        return "no GPU"
    current = torch.cuda.current_device() if torch.cuda.is_initialized() else None
    return f"{torch.cuda.get_device_properties(current or 0)} {current}"


def _ranks(_: Describer) -> str:
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return "alone"
    return f"rank {distributed.get_rank()} of {distributed.get_world_size()}"


def _versions(_: Describer) -> str:
    return f"torch {torch.__version__} {torch.version.git_version} Python {sys.version} {platform.machine()}"


_STATES: dict[str, Callable[[Describer], str]] = {
    "versions": _versions,
    "settings of Dynamo": lambda _: configuration_of_dynamo(),
    "grad mode, autocast, determinism, threads, default dtype": lambda _: global_state_text(),
    "graph breaks as errors": lambda _: str(error_on_graph_break()),
    "inference mode": lambda _: str(inference_mode()),
    "default device": lambda _: str(default_device()),
    "default dtype": lambda _: str(torch.get_default_dtype()),
    "hooks of all modules": lambda describer: ",".join(describer.identity(each) for each in global_module_hooks()),
    "settings of backends": _backends,
    "GPUs": _devices,
    "ranks": _ranks,
}

_UNDER_WAY: dict[str, Callable[[], bool]] = {
    "modes of torch functions": lambda: bool(function_modes()),
    "a transform of functorch": lambda: bool(functorch_levels()),
    "forward-mode differentiation": lambda: forward_mode_level() >= 0,
    "hooks of saved tensors": lambda: bool(saved_tensors_hooks()),
}
