"""What a workload of the checks on a GPU is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tests.farm import models

# Of a function that is recorded as CUDA graphs: one warms up, one records, and two replay.
CALLS_OF_CUDA_GRAPHS = 4

Arguments = tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A function and the calls of it.

    Attributes:
        make: the function and the arguments of each call, for a device.
        training: goes backward after each call.
        dynamic: as in torch.compile.
        mode: as in torch.compile.
        options: as in torch.compile, which takes no mode beside them.
    """

    make: Callable[[torch.device], tuple[Callable[..., Any], list[Arguments]]]
    training: bool = False
    dynamic: bool | None = None
    mode: str | None = None
    options: Mapping[str, Any] | None = None


def of_model(make: Callable[[], models.ModelAndInputs], *, dtype: torch.dtype | None = None, **how: Any) -> Workload:
    def on(device: torch.device) -> tuple[nn.Module, list[Arguments]]:
        model, inputs = make()
        return model.to(device, dtype), [tuple(tensor.to(device) for tensor in inputs)]

    return Workload(make=on, **how)


def of_function(function: Callable[..., Any], *shapes: tuple[tuple[int, ...], ...], **how: Any) -> Workload:
    """A function called once with tensors of each list of shapes."""

    def on(device: torch.device) -> tuple[Callable[..., Any], list[Arguments]]:
        torch.manual_seed(0)
        training = how.get("training", False)
        drawn = [tuple(torch.randn(shape) for shape in call) for call in shapes]
        return function, [tuple(tensor.to(device).requires_grad_(training) for tensor in call) for call in drawn]

    return Workload(make=on, **how)


def of_calls(
    make: Callable[[torch.device], tuple[Callable[..., Any], Callable[[], Arguments]]], **how: Any
) -> Workload:
    """A function that is called so often that it is recorded as CUDA graphs, and replayed with other arguments."""

    def on(device: torch.device) -> tuple[Callable[..., Any], list[Arguments]]:
        torch.manual_seed(0)
        function, draw = make(device)
        return function, [draw() for _ in range(CALLS_OF_CUDA_GRAPHS)]

    return Workload(make=on, **{"mode": "reduce-overhead", **how})
