"""The state of a process that a trace depends on, as a description of each part."""

from __future__ import annotations

import operator
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
from compilefarm.torch_internals.traced_functions import question_named

# What a variant is said to rest on beside the state, if the trace went through a set.
ORDER_OF_SETS = "order of sets"
# Which lines a function has, from its first one on: what it calls and is not traced may ask where it was called.
LINES = "lines of the function"
# How the name of a state begins that a graph asks for.
_ANSWER = "answer of torch._C."


def states(describer: Describer) -> dict[str, str]:
    """Describes each part of the state by name."""
    return {name: describe(describer) for name, describe in _STATES.items()}


def require_plain() -> str | None:
    """Returns what is under way in this process that no description would be right for; None if nothing is."""
    for what, is_there in _UNDER_WAY.items():
        if is_there():
            return what
    return None


def answers(graphs: Iterable[torch.fx.Graph]) -> dict[str, str]:
    """What graphs ask torch itself about its state, by name, with what it answers now. Dynamo has taken the answer for
    a constant, and left the question in the graph."""
    calls = [node for graph in graphs for node in graph.nodes if node.op == "call_function" and not node.args]
    asked = {name: node.target for node in calls if (name := getattr(node.target, "__name__", ""))}
    return {f"{_ANSWER}{name}": _answer(each) for name, each in asked.items() if question_named(name) is each}


def answer_of(name: str) -> str | None:
    """What torch answers now, by a name that `answers` has given; None if that is no question."""
    question = question_named(name.removeprefix(_ANSWER)) if name.startswith(_ANSWER) else None
    return _answer(question) if question is not None else None


def _answer(question: Any) -> str:
    try:
        return repr(question())
    except (RuntimeError, TypeError) as error:
        return type(error).__name__


def variables(names: Iterable[str]) -> dict[str, str]:
    """The environment variables of these names, described."""
    return {name: repr(os.environ.get(name)) for name in names}


def _backends(_: Describer) -> str:
    facts: dict[str, Any] = {name: _told(operator.attrgetter(name), torch.backends) for name in _SWITCHES}
    facts |= {read.__name__: _told(read) for read in _READ}
    return str(facts)


def _told(read: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return read(*arguments)
    except RuntimeError:
        # Newer switches contradict it (aten/src/ATen/Context.cpp); they are among the others.
        return "contradicted"


def _limits(_: Describer) -> str:
    # Dynamo computes what asks for them (torch/_dynamo/polyfills/sys.py). Python 3.10 may lack the second.
    # So does who multiplies numbers; torch.set_flush_denormal has the processor take the smallest for zero.
    flushes = sys.float_info.min * sys.float_info.epsilon == 0.0
    return f"{sys.getrecursionlimit()} {getattr(sys, 'get_int_max_str_digits', int)()} {flushes}"


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
    # NumPy says what becomes of its own numbers, also where Dynamo has functions of torch for its functions.
    numpy = getattr(sys.modules.get("numpy"), "__version__", None)
    return f"torch {torch.__version__} {torch.version.git_version} Python {sys.version} {platform.machine()} {numpy}"


_SWITCHES = (
    "cudnn.enabled", "cudnn.benchmark", "cudnn.deterministic", "cudnn.allow_tf32", "cudnn.fp32_precision",
    "cudnn.conv.fp32_precision", "cudnn.rnn.fp32_precision", "cuda.matmul.allow_tf32",
    "cuda.matmul.allow_fp16_reduced_precision_reduction", "cuda.matmul.allow_bf16_reduced_precision_reduction",
    "cuda.matmul.allow_fp16_accumulation", "cuda.matmul.fp32_precision", "fp32_precision", "mkldnn.enabled",
    "mkldnn.deterministic", "mkldnn.fp32_precision", "mkldnn.conv.fp32_precision", "mkldnn.matmul.fp32_precision",
    "mkldnn.rnn.fp32_precision",
)  # fmt: skip
_READ: tuple[Callable[[], Any], ...] = (
    torch.backends.cuda.flash_sdp_enabled,
    torch.backends.cuda.mem_efficient_sdp_enabled,
    torch.backends.cuda.math_sdp_enabled,
    torch.backends.cuda.cudnn_sdp_enabled,
    torch.backends.mkldnn.is_available,
    torch.get_float32_matmul_precision,
)
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
    "limits of the interpreter": _limits,
    "GPUs": _devices,
    "ranks": _ranks,
}

_UNDER_WAY: dict[str, Callable[[], bool]] = {
    "modes of torch functions": lambda: bool(function_modes()),
    "a transform of functorch": lambda: bool(functorch_levels()),
    "forward-mode differentiation": lambda: forward_mode_level() >= 0,
    "hooks of saved tensors": lambda: bool(saved_tensors_hooks()),
}
