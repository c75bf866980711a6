"""Values that occur in a graph: literals, containers, constants, results."""

from __future__ import annotations

import enum
import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from tests.corpus.program import Case, Program, call, simple


def _cube() -> tuple[torch.Tensor]:
    return (torch.randn(4, 4, 4),)


def _indices(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    rows = torch.tensor([3, 0])
    return (
        x[1:3, ..., ::2],
        x[-1],
        x[:, None, 1:],
        x[rows, :, rows],
        x[x > 0.5].sum(),
        x[..., -2:, 0],
        x[[0, 2]],
        x[True],
    )


def _kinds(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    last = x[0].to(torch.float64, copy=True), x.to("cpu", torch.float16), x.to(dtype=torch.int8), x.bfloat16()
    return (
        *last,
        torch.zeros(2, device=torch.device("cpu"), dtype=torch.uint8),
        torch.ones(2, device="cpu"),
        x.sum(dtype=torch.double),
    )


def _layouts(image: torch.Tensor) -> tuple[torch.Tensor, ...]:
    last = image.contiguous(memory_format=torch.channels_last)
    kept = last.clone(memory_format=torch.preserve_format)
    return (
        last,
        kept + 1,
        torch.empty_like(last, layout=torch.strided).zero_(),
        last.to(memory_format=torch.contiguous_format),
    )


def _complex_numbers(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    z = torch.complex(x, x + 1) * (1 - 2j)
    return z, z.abs(), torch.view_as_real(z), torch.polar(x.abs(), x), z.conj().resolve_conj(), z.real + z.imag


def _extremes(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    mask = x.tril() == 0
    filled = x.masked_fill(mask, float("-inf"))
    return (
        filled,
        x * float("nan"),
        torch.full((2,), float("inf")),
        x.clamp(min=-0.0),
        torch.nan_to_num(filled, neginf=-1e30),
        x + 1e-45,
    )


class _Kind(enum.Enum):
    SUM = "sum"
    MEAN = "mean"


class _Order(enum.IntEnum):
    FIRST = 0
    LAST = -1


def _enumerations(x: torch.Tensor, kind: _Kind) -> torch.Tensor:
    reduced = x.sum(_Order.LAST) if kind is _Kind.SUM else x.mean(_Order.FIRST)
    return nn.functional.mse_loss(reduced, reduced * 2, reduction=kind.value) + x.select(_Order.FIRST, 1)


class _Pair(NamedTuple):
    low: torch.Tensor
    high: torch.Tensor


@dataclass
class _Record:
    """What a model may return."""

    value: torch.Tensor
    note: str


def _structures(x: torch.Tensor) -> dict[str, Any]:
    spread = torch.aminmax(x, dim=0)
    pair = _Pair(low=spread.min, high=spread.max)
    record = _Record(value=pair.low + 1, note="kept")
    return {
        "pair": pair,
        "list": [x, (pair.high, None)],
        "number": x.shape[0],
        "note": record.note,
        "value": record.value,
        "x": x,
    }


def _repeated_results(x: torch.Tensor) -> tuple[Any, ...]:
    y = x + 1
    return y, y, x, y.view(-1), y[0], None, 3, torch.tensor(2.0)


def _nothing_of_tensors(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    sizes = [size + 1 for size in x.shape]
    kept = [index for index in range(4) if index % 2]
    return (
        torch.zeros(sizes),
        x[:, kept],
        torch.linspace(0, 1, len(kept)),
        torch.arange(2**40, 2**40 + 2),
        torch.tensor(2**62),
    )


def _methods_kept(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Asks for methods, some of them written in Python, before it calls them."""
    split, total, unflatten = x.split, x.sum, x.unflatten
    torch._dynamo.graph_break()
    return *split([1, 3], dim=1), *torch.Tensor.split(x, 3), total(0), unflatten(0, (2, 2))


def _wide_integers(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.to(torch.uint64).clone(), torch.full((2,), 2**63 - 1), torch.full((2,), 2**64 - 1, dtype=torch.uint64)


def _made_constants(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    table = torch.tensor([[0.1, 0.2], [0.3, float("nan")]])
    numbers = torch.tensor([1, 2, 3], dtype=torch.int16)
    return x[0, 0, :2] @ table, numbers * 2, x + torch.as_tensor(3.5), torch.eye(2), torch.tensor(True), torch.empty(0)


class _Holder(nn.Module):
    """Holds tensors that are neither parameters nor buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.randn(4)
        self.tables = [torch.randn(4), {"deep": torch.arange(4)}]
        self.linear = nn.Linear(4, 4)
        self.register_buffer("kept", torch.randn(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, others = self.tables
        assert isinstance(others, dict)
        result: torch.Tensor = self.linear(x) * self.table + first - others["deep"] + self.kept
        return result


_GLOBAL = torch.linspace(-1, 1, 4)


def _closed_over() -> Case:
    weight = torch.randn(4, 4)

    def function(x: torch.Tensor) -> torch.Tensor:
        return x @ weight + _GLOBAL

    return Case(function=function, calls=[call(*_cube())])


def _numpy(x: torch.Tensor) -> torch.Tensor:
    table = np.asarray([1.0, 2.0, 3.0, 4.0], dtype=np.float32)
    return torch.from_numpy(np.tanh(x.numpy()) * table) + float(np.pi)


_not_lifted = functools.partial(torch._dynamo.config.patch, inline_inbuilt_nn_modules=False)

PROGRAMS = (
    simple("indices", _indices, _cube),
    simple("dtypes_and_devices", _kinds, _cube),
    simple("memory_formats", _layouts, lambda: (torch.randn(2, 3, 4, 4),)),
    simple("complex_numbers", _complex_numbers, _cube),
    simple("infinities", _extremes, lambda: (torch.randn(4, 4),)),
    simple("enumerations", _enumerations, lambda: (*_cube(), _Kind.SUM)),
    simple("structures", _structures, _cube),
    simple("repeated_results", _repeated_results, _cube),
    simple("sizes_and_ranges", _nothing_of_tensors, _cube),
    simple("wide_integers", _wide_integers, lambda: (torch.arange(3),)),
    simple("methods_kept", _methods_kept, _cube),
    simple("made_constants", _made_constants, _cube),
    Program(name="held_tensors", build=lambda: Case(function=_Holder(), calls=[call(*_cube())])),
    Program(name="closed_over_tensors", build=_closed_over),
    Program(
        name="attributes_not_lifted",
        build=lambda: Case(function=_Holder(), calls=[call(*_cube())]),
        context=_not_lifted,
    ),
    simple("numpy", _numpy, lambda: (torch.randn(4, 4),)),
)
