"""A pod that compiles models and says what became of them: `python -m tests.client.starting_pod CHANGE...`.

It prints a list with an object for each change: whether the result is right, how many calls Dynamo has traced, what
stats() says of it, what comparisons of packages with traces have found, and whether the encoder is imported.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch._dynamo.utils import counters

import compilefarm.client
from tests.packages import models


class Broken(models.Model):
    """Prints between two graphs."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks[0](x)
        print(end="")
        return self.head(x)


# What is changed before a model is compiled. The last of these stay for all models that are made after them.
CHANGES: Mapping[str, Callable[[models.Model], object]] = {
    "none": lambda model: None,
    "graph break": lambda model: setattr(model, "__class__", Broken),
    "hook": lambda model: model.head.register_forward_hook(lambda module, inputs, output: output * 2),
    "lock": lambda model: model.head.register_forward_hook(Locking()),
    "activation": lambda model: setattr(model.blocks[0], "activation", torch.nn.functional.relu),
    "module": lambda model: model.register_module("head", nn.Linear(4, 3)),
    "property": lambda model: setattr(models.Block, "share", property(lambda self: 2.0)),
}


class Locking:
    """A hook that has no description."""

    def __init__(self) -> None:
        import threading

        self._lock = threading.Lock()

    def __call__(self, module: nn.Module, inputs: object, output: torch.Tensor) -> torch.Tensor:
        return output + 1


class Comparisons(logging.Handler):
    """Collects what comparisons have found."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if "was compared with a trace: " in message:
            self.found.append(message.rpartition("was compared with a trace: ")[2].strip())


def run(change: str) -> dict[str, Any]:
    """Compiles a model with a change, and calls it."""
    torch.compiler.reset()
    counters.clear()
    before = len(compilefarm.client.stats())
    comparisons, logger = Comparisons(), logging.getLogger("compilefarm.client")
    logger.handlers = [comparisons]
    logger.setLevel(logging.INFO)
    model, x = models.ready(), torch.arange(8.0).reshape(2, 4)
    CHANGES[change](model)
    with torch.no_grad():
        expected = model(x)
        result = torch.compile(model, backend="compilefarm")(x)
    records = compilefarm.client.stats()[before:]
    return {
        "right": torch.equal(result, expected),
        "traced": counters["stats"]["calls_captured"],
        "dynamo": [record.dynamo for record in records],
        "compared": comparisons.found,
        "can encode": "compilefarm.graph.encode" in sys.modules,
    }


if __name__ == "__main__":
    json.dump([run(change) for change in sys.argv[1:]], sys.stdout)
