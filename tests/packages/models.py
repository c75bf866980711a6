"""A model with something of everything that a fingerprint looks at. Run as a program, it prints keys."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from enum import Enum
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from compilefarm.core.code_digests import digest_of_code
from compilefarm.core.dynamo_packages import Lookup
from compilefarm.packages.lookup_keys import LookupKey, lookup_key

SCALES = ("row", "column", "block", "tensor", "channel")


class Kind(Enum):
    """How a block adds what it computes."""

    RESIDUAL = "residual"
    PLAIN = "plain"


def scaled(x: torch.Tensor, *, factor: float = 0.5) -> torch.Tensor:
    return x * factor


def doubled(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(function)
    def call(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return function(self, x) * 2

    return call


class Block(nn.Module):
    """A block."""

    kind = Kind.RESIDUAL
    limit = 6.0

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, width)
        self.activation = F.gelu
        self.drop = nn.Dropout(0.25)
        self.register_buffer("offset", torch.zeros(width))

    @property
    def share(self) -> float:
        return 0.5

    @doubled
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.activation(self.linear(self.norm(x))) + self.offset
        if "row" in {"row", "column", "block"} and "row" in SCALES:
            y = F.softplus(y)
        return scaled(self.drop(y)) * self.share


class Model(nn.Module):
    """Two blocks whose first weights are one."""

    compiled: object

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(4), Block(4)])
        self.head = nn.Linear(4, 2, bias=False)
        self.further = [nn.Identity()]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.further[0](self.head(x))


def ready() -> Model:
    """A model with a hook, as a process makes it, which keeps itself compiled as those of transformers do."""
    torch.manual_seed(0)
    model = Model().eval()
    model.compiled = torch.compile(model.__call__, backend="eager")
    model.blocks[0].register_forward_hook(lambda module, inputs, output: output + 1)
    return model


MODEL = ready()


def step(x: torch.Tensor) -> torch.Tensor:
    return finish(MODEL(x))


def finish(x: torch.Tensor) -> torch.Tensor:
    return x.clamp(max=Block.limit)


def key_of(entry: Any, *arguments: object, settings: str = "mode=default") -> LookupKey:
    """The key of packages for a function, method or module that is called with arguments."""
    called = entry.forward if isinstance(entry, nn.Module) else entry
    function = getattr(called, "__func__", called)
    bound = (called.__self__,) if function is not called else ()
    code = function.__code__
    names = (*code.co_varnames[: code.co_argcount], *code.co_freevars)
    values = (*bound, *arguments, *(cell.cell_contents for cell in function.__closure__ or ()))
    return lookup_key(
        Lookup(
            module=function.__module__,
            qualified_name=code.co_qualname,
            code_digest=digest_of_code(code),
            settings=settings,
        ),
        code=code,
        scope=function.__globals__,
        local_variables=dict(zip(names, values, strict=False)),
    )


if __name__ == "__main__":
    # Its functions have the name of the module that tests import.
    from tests.packages import models

    models.ready()
    for entry in (models.MODEL, models.step, models.MODEL.blocks[1].forward):
        key = key_of(entry)
        sys.stdout.write(f"{key.text} {key.parts}\n")
