"""Programs whose packages are damaged: between them they have guards, sources and dependencies of most kinds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

# What a call returns, with the function compiled or as it is.
Call = Callable[[Callable[..., Any]], Any]


class Settings:
    """Values that programs read."""

    def __init__(self) -> None:
        self.scale = 2.0
        self.names = ["a", "b"]
        self.table = {"k": 3, "j": 4}


SETTINGS = Settings()
IS_TRIPLED = True


class Block(nn.Module):
    """A module with parameters, a buffer, a function and settings of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.settings = Settings()
        self.activation = torch.relu
        self.register_buffer("shift", torch.ones(4))

    def forward(self, x: torch.Tensor, more: Mapping[str, torch.Tensor], *, power: int = 2) -> Any:
        y = self.activation(self.linear(x)) * self.settings.scale + self.shift
        for name, value in more.items():
            y = y + value * len(name)
        if power > 1 and IS_TRIPLED:
            y = y * SETTINGS.table["k"]
        return y.sin(), x.shape[0]


def joined(x: torch.Tensor, y: torch.Tensor) -> Any:
    """Relates its inputs."""
    return (x + y[:, : x.shape[1]]) * len(SETTINGS.names), x is y


def broken(x: torch.Tensor, *numbers: int) -> torch.Tensor:
    """Has a break, and a rest that is a function of its own."""
    y = x * sum(numbers)
    torch._dynamo.graph_break()
    return y.cos() + x


def inner_of(factor: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """A closure."""

    def inner(x: torch.Tensor) -> torch.Tensor:
        return x.tanh() * factor

    return inner


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A function and how it is called.

    Attributes:
        name: for people.
        function: what is compiled.
        call: calls it, and returns results.
    """

    name: str
    function: Callable[..., Any]
    call: Call


def programs() -> list[Started]:
    """All of them, the same each time."""
    torch.manual_seed(0)
    block, x, wide = Block(), torch.rand(3, 4), torch.rand(3, 6)
    more = {"p": torch.ones(4), "qq": torch.rand(4)}
    return [
        Started(name="module", function=block, call=lambda run: run(x, more, power=2)),
        Started(name="function", function=joined, call=lambda run: run(x, wide)),
        Started(
            name="sizes",
            function=joined,
            call=lambda run: [run(torch.ones(size, 4), torch.ones(size, 6)) for size in (3, 5, 7)],
        ),
        Started(name="break", function=broken, call=lambda run: run(x, 2, 3)),
        Started(name="closure", function=inner_of(3), call=lambda run: run(x)),
    ]
