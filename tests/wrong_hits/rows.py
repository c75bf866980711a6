"""What differs between two pods that ask for one graph, and what keeps the second from the first one's program."""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch


class Guard(enum.Enum):
    """What keeps pods apart.

    Attributes:
        KEY: they have two keys, and a worker takes on the state that a key was made in.
        BYPASS: the second one does not ask.
    """

    KEY = enum.auto()
    BYPASS = enum.auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A state of a pod that is not torch's default.

    Attributes:
        enter: puts the process into it, and back.
        guard: what keeps a pod in this state apart from one in the default state.
        program: what both of them compile.
        device: where it computes; what decides for GPUs alone does not keep pods without them apart.
    """

    enter: Callable[[], AbstractContextManager[object]]
    guard: Guard = Guard.KEY
    program: Callable[[torch.Tensor], torch.Tensor]
    device: str = "cpu"


def square(x: torch.Tensor) -> torch.Tensor:
    return (x @ x).sin()


def casting(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu"):
        return x @ x


def contraction(x: torch.Tensor) -> torch.Tensor:
    return torch.einsum("ij,jk,kl->il", x, x, x)


@contextmanager
def _set(read: Callable[[], Any], write: Callable[[Any], object], value: object) -> Iterator[None]:
    before = read()
    write(value)
    try:
        yield
    finally:
        write(before)


def _attribute(owner: Any, name: str, value: object, *, device: str = "cpu") -> Row:
    def enter() -> AbstractContextManager[None]:
        return _set(lambda: getattr(owner, name), lambda each: setattr(owner, name, each), value)

    return Row(enter=enter, program=square, device=device)


def _switch(
    read: Callable[[], Any], write: Callable[[Any], object], value: object, *, program: Any = square, **options: Any
) -> Row:
    return Row(enter=lambda: _set(read, write, value), program=program, **options)


def _order(order: list[int]) -> Row:
    return _switch(torch._C._get_sdp_priority_order, torch._C._set_sdp_priority_order, order, device="cuda")


def _contraction(name: str, value: object) -> Row:
    owner: Any = torch.backends.opt_einsum
    return _switch(lambda: getattr(owner, name), lambda each: setattr(owner, name, each), value, program=contraction)


_BACKENDS: Any = torch.backends
_CUDA = _BACKENDS.cuda
ROWS: dict[str, Row] = {
    "gradients off": Row(enter=torch.no_grad, program=square),
    "inference mode": Row(enter=torch.inference_mode, program=square),
    "autocast on": Row(enter=lambda: torch.autocast("cpu"), program=square),
    "dtype of autocast while it is off": _switch(
        lambda: torch.get_autocast_dtype("cpu"),
        lambda dtype: torch.set_autocast_dtype("cpu", dtype),
        torch.float16,
        program=casting,
    ),
    "cache of autocast": _switch(torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled, False),
    "precision of products high": _switch(
        torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "high"
    ),
    "precision of products medium": _switch(
        torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "medium"
    ),
    "deterministic algorithms": _switch(
        torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True
    ),
    "deterministic algorithms, warnings": _switch(
        torch.are_deterministic_algorithms_enabled,
        lambda mode: torch.use_deterministic_algorithms(mode, warn_only=mode),
        True,
    ),
    "memory that is not filled": _attribute(torch.utils.deterministic, "fill_uninitialized_memory", False),
    "default dtype": _switch(torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    "threads": _switch(torch.get_num_threads, torch.set_num_threads, torch.get_num_threads() + 1),
    "smallest numbers are zero": _switch(
        lambda: sys.float_info.min * sys.float_info.epsilon == 0.0, torch.set_flush_denormal, True
    ),
    "processors that others leave": _switch(
        torch._C._get_sm_carveout_experimental, torch._C._set_sm_carveout_experimental, 4, guard=Guard.BYPASS
    ),
    "contraction from left to right": _contraction("enabled", False),
    "contraction greedy": _contraction("strategy", "greedy"),
    "contraction optimal": _contraction("strategy", "optimal"),
    "order of attention": _order([0, 1, 2, 3, 4]),
    "order of attention, cuDNN first": _order([3, 1, 2, 0, 4]),
    "attention by cuDNN": _switch(_CUDA.cudnn_sdp_enabled, _CUDA.enable_cudnn_sdp, False),
    "attention by flash": _switch(_CUDA.flash_sdp_enabled, _CUDA.enable_flash_sdp, False),
    "attention by math": _switch(_CUDA.math_sdp_enabled, _CUDA.enable_math_sdp, False),
    "attention in less memory": _switch(_CUDA.mem_efficient_sdp_enabled, _CUDA.enable_mem_efficient_sdp, False),
    "attention by math in half precision": _switch(
        _CUDA.fp16_bf16_reduction_math_sdp_allowed, _CUDA.allow_fp16_bf16_reduction_math_sdp, True
    ),
    "cudnn.allow_tf32": _attribute(_BACKENDS.cudnn, "allow_tf32", False, device="cuda"),
    "cudnn.benchmark": _attribute(_BACKENDS.cudnn, "benchmark", True, device="cuda"),
    "cudnn.deterministic": _attribute(_BACKENDS.cudnn, "deterministic", True, device="cuda"),
    "cudnn.enabled": _attribute(_BACKENDS.cudnn, "enabled", False, device="cuda"),
    "mkldnn.deterministic": _attribute(_BACKENDS.mkldnn, "deterministic", True),
    "mkldnn.enabled": Row(enter=lambda: _BACKENDS.mkldnn.flags(enabled=False), program=square),
    "fp32_precision": _attribute(_BACKENDS, "fp32_precision", "ieee"),
    "cuda.matmul.fp32_precision": _attribute(_CUDA.matmul, "fp32_precision", "tf32", device="cuda"),
    "cudnn.conv.fp32_precision": _attribute(_BACKENDS.cudnn.conv, "fp32_precision", "ieee", device="cuda"),
    "cudnn.rnn.fp32_precision": _attribute(_BACKENDS.cudnn.rnn, "fp32_precision", "ieee", device="cuda"),
    "mkldnn.conv.fp32_precision": _attribute(_BACKENDS.mkldnn.conv, "fp32_precision", "bf16"),
    "mkldnn.matmul.fp32_precision": _attribute(_BACKENDS.mkldnn.matmul, "fp32_precision", "bf16"),
    "mkldnn.rnn.fp32_precision": _attribute(_BACKENDS.mkldnn.rnn, "fp32_precision", "bf16"),
    "reductions in bfloat16": _attribute(_CUDA.matmul, "allow_bf16_reduced_precision_reduction", False, device="cuda"),
    "reductions in float16": _attribute(_CUDA.matmul, "allow_fp16_reduced_precision_reduction", False, device="cuda"),
    "accumulation in float16": _attribute(_CUDA.matmul, "allow_fp16_accumulation", True, device="cuda"),
    "default device": _switch(torch.get_default_device, torch.set_default_device, "meta", guard=Guard.BYPASS),
    "hooks for saved tensors": Row(
        enter=lambda: torch.autograd.graph.saved_tensors_hooks(torch.Tensor.bfloat16, torch.Tensor.float),
        guard=Guard.BYPASS,
        program=square,
    ),
}
