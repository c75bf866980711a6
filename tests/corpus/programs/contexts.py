"""Ambient state, switched inside a program or around it."""

from __future__ import annotations

from functools import partial

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from tests.corpus.program import simple
from tests.torch_states import default_dtype, matmul_precision, restored


def _square() -> tuple[torch.Tensor]:
    return (torch.randn(4, 4),)


def _tracked() -> tuple[torch.Tensor]:
    return (torch.randn(4, 4, requires_grad=True),)


def _autocast(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = x @ x
        with torch.autocast("cpu", enabled=False):
            high = low.float() @ x
    return low, high, x @ x


@torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
def _in_full_precision(x: torch.Tensor) -> torch.Tensor:
    return x @ x


@torch.autocast("cpu", dtype=torch.float16)
def _autocast_decorator(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(x, x).softmax(-1)


def _no_grad(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        scale = x.abs().max()
        with torch.enable_grad():
            kept = x * 3
    return x / scale + kept


@torch.enable_grad()
def _enable_grad(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).sin()


def _set_grad_enabled(x: torch.Tensor) -> torch.Tensor:
    torch.set_grad_enabled(False)
    y = x * 2
    torch.set_grad_enabled(True)
    return y + x.sin()


def _inference_mode(x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        y = x.sin()
    return y * 2


def _detached(x: torch.Tensor) -> torch.Tensor:
    return x * x.detach() + x.sin().detach().requires_grad_(False)


def _attention_kernel(q: torch.Tensor) -> torch.Tensor:
    with sdpa_kernel(SDPBackend.MATH):
        exact = scaled_dot_product_attention(q, q, q)
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH], set_priority=True):
        return exact + scaled_dot_product_attention(q, q, q, is_causal=True)


def _profiled(x: torch.Tensor) -> torch.Tensor:
    with torch.profiler.record_function("part"):
        return x.sin() + 1


def _with_hooks(x: torch.Tensor) -> torch.Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved * 1, lambda saved: saved):
        return (x.sin() * x).exp()


def _matmul(x: torch.Tensor) -> torch.Tensor:
    return x @ x + torch.zeros(4)


@torch._dynamo.disable
def _uncompiled(x: torch.Tensor) -> torch.Tensor:
    return x + 0.5


def _broken(x: torch.Tensor) -> torch.Tensor:
    x = x.sin()
    x = _uncompiled(x)
    x = x.cos()
    torch._dynamo.graph_break()
    return x * 2 if x.sum() > 0 else x * 3


_default_dtype = partial(default_dtype, torch.float64)
_matmul_precision = partial(matmul_precision, "medium")
_deterministic = partial(restored, torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True)

PROGRAMS = (
    simple("autocast_inside", _autocast, _square, precision=torch.bfloat16),
    simple("autocast_decorator", _autocast_decorator, _square, precision=torch.float16),
    simple("autocast_inside_with_gradients", _autocast, _tracked, training=True, precision=torch.bfloat16),
    simple(
        "autocast_around",
        _matmul,
        _square,
        precision=torch.bfloat16,
        context=partial(torch.autocast, "cpu", dtype=torch.bfloat16),
    ),
    simple(
        "full_precision_inside_autocast",
        _in_full_precision,
        _square,
        context=partial(torch.autocast, "cpu", dtype=torch.bfloat16),
    ),
    simple("no_grad_inside", _no_grad, _tracked, training=True),
    simple("enable_grad_inside", _enable_grad, _tracked),
    simple("set_grad_enabled_inside", _set_grad_enabled, _tracked, training=True),
    simple("inference_mode_inside", _inference_mode, _square),
    simple("inference_mode_around", _matmul, _square, context=torch.inference_mode),
    simple("detached", _detached, _tracked, training=True),
    simple("sdpa_kernel", _attention_kernel, lambda: (torch.randn(1, 2, 6, 8),)),
    simple("device_around", _matmul, _square, context=partial(torch.device, "cpu")),
    simple("default_dtype_around", _matmul, _square, context=_default_dtype),
    simple("matmul_precision_around", _matmul, _square, context=_matmul_precision),
    simple("deterministic_around", _matmul, _square, context=_deterministic),
    simple("profiled", _profiled, _square),
    simple("saved_tensors_hooks", _with_hooks, _tracked, training=True),
    simple("graph_breaks", _broken, _square),
)
