"""Requests to begin with, and what their fields may be set to."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import torch
import torch._functorch.config
import torch._inductor.config
from torch import fx
from torch._higher_order_ops import scan, while_loop
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from compilefarm.core.requests import Request
from compilefarm.core.testing import Mutator
from compilefarm.graph import settings, targets
from compilefarm.graph.dtypes import DTYPES, LAYOUTS, MEMORY_FORMATS
from compilefarm.graph.encode import encode_job
from compilefarm.graph.testing import capture, fixed_environment
from compilefarm.v1.graph_pb2 import Call

from .watch import DECOYS

X, W, TOKENS = torch.ones(2, 3, 4), torch.ones(4, 4), torch.zeros(2, 3, dtype=torch.int64)


def _autocast(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        return x @ w


def _with_math_attention(x: torch.Tensor) -> torch.Tensor:
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(x, x, x)


PROGRAMS: tuple[tuple[Callable[..., Any], tuple[torch.Tensor, ...]], ...] = (
    (lambda x, w: F.gelu(F.linear(x, w), approximate="tanh").softmax(-1, dtype=torch.float64), (X, W)),
    (lambda x: x[:, None, 1:, ..., ::2] * 2 + x.mean(dim=(0, 1, 2), keepdim=True), (X,)),
    (lambda x: torch.cat([part.t() for part in x.transpose(0, 2).reshape(4, 6).split([1, 3])], dim=-1), (X,)),
    (lambda ids, w: F.embedding(ids, w).to(torch.bfloat16, memory_format=torch.preserve_format), (TOKENS, W)),
    (lambda x: F.conv2d(x[None], torch.ones(2, 2, 3, 3, device="cpu"), padding=(1, 1)).add_(1.5), (X,)),
    (lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True), (X[None],)),
    (lambda x: F.pad(torch.arange(x.shape[0], dtype=x.dtype) + x.sum(), (1, 2), value=float("-inf")), (X,)),
    (lambda x: torch.ops.aten.add.Tensor(x, torch.full((4,), complex(1, 2)), alpha=3), (X,)),
    (lambda x: (F.layer_norm(x, (4,)), torch.where(x > 0, x, x.masked_fill(x != x, 0.0)).cumsum(0)), (X,)),
    (lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), (X,)),
    (_autocast, (X, W)),
    (torch.vmap(lambda x: x * x.sum()), (X,)),
    (_with_math_attention, (X[None],)),
    (lambda x: while_loop(lambda i, _: i < 4, lambda i, y: (i + 1, y * 2), (torch.tensor(0), x)), (X,)),
    (lambda x: scan(lambda total, row: (total + row, total * row), torch.zeros(3, 4), x), (X,)),
    (lambda x: checkpoint(lambda y: torch.relu(y + y), x, use_reentrant=False), (X,)),
    (lambda x: F.dropout(F.max_pool2d(x, 2), 0.5).unsqueeze(1).expand(2, 3, -1, -1).chunk(2, dim=1), (X,)),
)  # fmt: skip

DYNAMIC_PROGRAMS: tuple[tuple[Callable[..., Any], tuple[torch.Tensor, ...]], ...] = (
    (lambda x: F.pad(x.reshape(x.shape[0] * 3, -1)[: x.shape[0] // 2 + 1], (0, x.shape[0] % 4)) + x.shape[0], (X,)),
    (lambda x: x.view(-1).unsqueeze(0).expand(x.shape[2], -1), (X,)),
)


class _Shifted(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shift = torch.arange(4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (x + self.shift,)


@functools.cache
def seeds() -> tuple[Request, ...]:
    """The requests that PROGRAMS make, one of them with options and other state too, and one that holds a tensor."""
    found = [capture(program, *inputs).encode() for program, inputs in PROGRAMS]
    found += [capture(program, *inputs, dynamic=True).encode() for program, inputs in DYNAMIC_PROGRAMS]
    program, inputs = PROGRAMS[0]
    with torch.no_grad(), torch.autocast("cpu"):
        found.append(capture(program, *inputs).encode(options={"max_autotune": True, "cpp.simdlen": 8}))
    found.append(encode_job(fx.symbolic_trace(_Shifted()), [X], options={}, environment=fixed_environment))
    return tuple(Request(job=encoded.job, blobs=encoded.blobs) for encoded in found)


@functools.cache
def blobs() -> Mapping[str, bytes]:
    """What the requests hold."""
    return {digest: content for request in seeds() for digest, content in request.blobs.items()}


def mutator(random: Random) -> Mutator:
    """Changes requests, often to what they could say and now and then to what they must not."""
    return Mutator(random, texts=_texts(), donors=_calls())


@functools.cache
def _calls() -> Sequence[Call]:
    names = targets.target_names()
    return [Call(kind=kind, target=name) for kind in names for name in sorted(names[kind])]


@functools.cache
def _texts() -> Mapping[str, Sequence[str]]:
    decoys = [f"{decoy}{tail}" for decoy in DECOYS for tail in ("", ".main", "::main", ".main.default")]
    settable = [*settings.defaults(torch._inductor.config), *settings.defaults(torch._functorch.config)]
    words = [*DTYPES, *LAYOUTS, *MEMORY_FORMATS, "cpu", "cuda", "dim", "dtype", "out", "highest", *decoys]
    return {
        "target": [*decoys, "os.system", "torch.load", "torch.ops.load_library", "builtins.eval", "aten::from_file"],
        "dtype": [*DTYPES, *decoys],
        "default_dtype": [*DTYPES, *decoys],
        "layout": [*LAYOUTS, *decoys],
        "memory_format": [*MEMORY_FORMATS, *decoys],
        "type": ["cpu", "cuda", "meta", "xla", *decoys],
        "device_type": ["cpu", "cuda", "meta", *decoys],
        "name": [*settable, "dim", "dtype", "device", "out", "size", "a=__import__('this')", *decoys],
        "text": words,
        "big_integer": ["9" * 30, "-" + "9" * 1000, "1e9", "__import__('this')"],
        "digest": ["0" * 64, *blobs()],
    }
