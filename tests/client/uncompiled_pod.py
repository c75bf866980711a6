"""A program for test_uncompiled_pods.py: a pod without a compiler, at one farm after another.

Takes the addresses of farms, and how many graphs to ask each for. Prints the records of the graphs as JSON; a graph
that raises, or computes something else than eager, ends it.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any

import torch

from compilefarm.client import Farm
from compilefarm.client.dependencies import Dependencies
from compilefarm.client.records import Ledger
from compilefarm.client.testing import FakeClock


def ask(farm: Farm, number: int) -> None:
    """Has a graph compiled, and calls it, forward and backward."""
    x = torch.ones(3, requires_grad=True)

    def function(x: torch.Tensor) -> torch.Tensor:
        return (x * number).sin()

    torch.compiler.reset()
    compiled: Any = torch.compile(function, backend=farm.backend)
    result = compiled(x)
    torch.testing.assert_close(result, function(x))
    result.sum().backward()
    torch.testing.assert_close(x.grad, number * (x * number).cos())


def main() -> None:
    ledger = Ledger()
    for argument in sys.argv[1:]:
        address, count = argument.split(",")
        # Waits cost no time, and every graph finds a farm that was given up to be tried again.
        clock = FakeClock()
        farm = Farm(address, timeout_seconds=60, dependencies=Dependencies(clock=clock, ledger=ledger))
        for number in range(int(count)):
            clock.seconds += 100.0
            ask(farm, number)
        farm.close()
    print(json.dumps([dataclasses.asdict(record) for record in ledger.records()]))


if __name__ == "__main__":
    main()
