"""Everything that may be passed to a program."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from tests.corpus.program import Case, Program, backpropagating, call, simple


def _affine(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + 1


def _twice(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.sin() * 2 + y.sum()


def _overlapping() -> tuple[torch.Tensor, torch.Tensor]:
    base = torch.randn(8)
    return base[:6], base[2:]


def _disjoint() -> tuple[torch.Tensor, torch.Tensor]:
    base = torch.randn(2, 8)
    return base[0], base[1]


def _same() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(4)
    return x, x


def _mutates(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    y[0] = 7
    return x + y


def _mutates_metadata(x: torch.Tensor) -> torch.Tensor:
    x.t_()
    return x * 2


def _mutates_view(x: torch.Tensor) -> torch.Tensor:
    x[1:3].mul_(0)
    return x.view(-1)[0] + 1


class _Counting(nn.Module):
    """Counts its calls in a buffer, and averages in another."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(4))
        self.norm = nn.BatchNorm1d(4, momentum=0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        self.mean.lerp_(x.mean(0), 0.1)
        result: torch.Tensor = self.norm(x) + self.mean
        return result


class _Tied(nn.Module):
    """One weight in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(8, 4)
        self.head = nn.Linear(4, 8, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.embed(tokens))
        return logits


class _Packed(nn.Module):
    """Parameters that are views of one storage, as sharded and flattened trainers make them."""

    def __init__(self) -> None:
        super().__init__()
        packed = torch.randn(20)
        self.weight = nn.Parameter(packed[:16].view(4, 4))
        self.bias = nn.Parameter(packed[16:])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight + self.bias


def _scalars(x: torch.Tensor, integer: int, real: float, flag: bool, word: str) -> torch.Tensor:
    scaled = x * integer + real
    return scaled.sum(0) if flag and word == "sum" else scaled


def _containers(given: dict[str, Any], parts: list[torch.Tensor]) -> torch.Tensor:
    return given["x"] * given["pair"][1] + torch.stack(parts).sum(0)


def _numpy(x: Any) -> Any:
    return np.sin(x) + x.sum(axis=0)


def _mixed(*tensors: torch.Tensor) -> list[torch.Tensor]:
    return [tensor + tensor for tensor in tensors]


def _every_dtype() -> tuple[torch.Tensor, ...]:
    integers = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
    reals = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64)
    return *(torch.arange(4).to(dtype) for dtype in integers), *(torch.randn(4).to(dtype) for dtype in reals)


def _unsigned(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.to(torch.int32) + 1, y.to(torch.int64) * 2


def _eight_bits(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.float32) * 2


def _pick(x: torch.Tensor, flag: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.where(flag, x, -x), ~flag, flag.sum(), flag.any(dim=0)


def _empty_parts(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.sum(0), torch.cat([x, torch.ones(1, 4)]), x.reshape(4, 0), x @ torch.ones(4, 2)


def _inference_tensor() -> tuple[torch.Tensor]:
    with torch.inference_mode():
        return (torch.randn(4, 4),)


def _pair_tensor() -> tuple[torch.Tensor]:
    # torch's own example of a subclass that compiles.
    from torch.testing._internal.two_tensor import TwoTensor

    return (TwoTensor(torch.randn(4), torch.randn(4)),)


def _jagged() -> tuple[torch.Tensor]:
    return (torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(3, 4)], layout=torch.jagged),)


def _tracked_and_not() -> Case:
    return Case(
        function=_twice,
        calls=[call(torch.randn(4, requires_grad=True), torch.randn(4)), call(torch.randn(4), torch.randn(4))],
        use=backpropagating,
    )


def _not_a_leaf() -> tuple[torch.Tensor]:
    return (torch.randn(4, 4, requires_grad=True) * 2,)


PROGRAMS = (
    simple("aliased_overlapping", _twice, _overlapping),
    simple("aliased_disjoint", _twice, _disjoint),
    simple("aliased_same", _twice, _same),
    simple("aliased_mutated", _mutates, _overlapping),
    simple("aliased_disjoint_mutated", _mutates, _disjoint),
    simple("mutated", _mutates, lambda: (torch.randn(4), torch.randn(4))),
    simple("mutated_metadata", _mutates_metadata, lambda: (torch.randn(3, 4),)),
    simple("mutated_view", _mutates_view, lambda: (torch.randn(4, 4),)),
    Program(
        name="mutated_buffers",
        build=lambda: Case(function=_Counting(), calls=[call(torch.randn(5, 4)) for _ in range(2)]),
    ),
    Program(name="tied_weights", build=lambda: Case(function=_Tied(), calls=[call(torch.arange(4))])),
    Program(
        name="packed_weights",
        build=lambda: Case(function=_Packed(), calls=[call(torch.randn(2, 4))], use=backpropagating),
        training=True,
    ),
    simple("python_scalars", _scalars, lambda: (torch.randn(4, 4), 3, 0.5, True, "sum")),
    simple(
        "containers", _containers, lambda: ({"x": torch.randn(4), "pair": (1, 2.5)}, [torch.randn(4), torch.randn(4)])
    ),
    simple("numpy_input", _numpy, lambda: (np.linspace(0, 1, 8).reshape(2, 4),)),
    simple("transposed_input", _affine, lambda: (torch.randn(3, 4).t(),)),
    simple("strided_input", _affine, lambda: (torch.randn(8, 8)[1::2, ::3],)),
    simple("offset_input", _affine, lambda: (torch.randn(9)[1:],)),
    simple("expanded_input", _affine, lambda: (torch.randn(4, 1).expand(4, 3),)),
    simple("channels_last_input", _affine, lambda: (torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),)),
    simple(
        "channels_last_3d_input",
        _affine,
        lambda: (torch.randn(1, 2, 3, 4, 5).to(memory_format=torch.channels_last_3d),),
    ),
    simple("empty_input", _empty_parts, lambda: (torch.randn(0, 4),)),
    simple("scalar_tensor_input", _twice, lambda: (torch.tensor(0.5), torch.tensor(3))),
    simple("every_dtype", _mixed, _every_dtype),
    simple("unsigned_input", _unsigned, lambda: (torch.arange(4).to(torch.uint16), torch.arange(4).to(torch.uint32))),
    simple("eight_bit_floats", _eight_bits, lambda: (torch.randn(4).to(torch.float8_e4m3fn),)),
    simple("boolean_input", _pick, lambda: (torch.randn(4), torch.tensor([True, False, True, True]))),
    simple("complex_input", _affine, lambda: (torch.randn(4, dtype=torch.complex64),)),
    simple("conjugated_input", _affine, lambda: (torch.randn(4, dtype=torch.complex64).conj(),)),
    simple("inference_tensor_input", _affine, _inference_tensor),
    simple("subclass_input", _affine, _pair_tensor),
    simple("jagged_input", torch.sin, _jagged),
    simple("tracked_not_a_leaf", _affine, _not_a_leaf, training=True),
    Program(name="tracked_and_not", build=_tracked_and_not, training=True),
)
