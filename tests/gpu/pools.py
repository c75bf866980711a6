"""What programs of a farm under CUDA graphs do to each other: `python -m tests.gpu.pools`, in the root of the checkout.

Starts a farm with the GPU. One process calls several of its programs in turn on every GPU of the machine: those of one
GPU share the memory of its graphs. Results are looked at when all have been called, and have to be those of eager;
every program has to be recorded. Then a program takes over from its uncompiled graph. Prints a line for each; the exit
status is 1 if one is wrong.
"""

from __future__ import annotations

import copy
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from compilefarm.client import Farm, stats
from tests.farm import models
from tests.farm.serving import serve

from .trees import graphs_on

_ROUNDS = 8
_TOLERANCE = 5e-2
# How long a compile of something small may take.
_PATIENCE_SECONDS = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A model beside its uncompiled twin.

    Attributes:
        name: it.
        compiled: takes what the model takes.
        eager: the twin.
        draw: makes arguments.
        training: goes backward after all have been called.
    """

    name: str
    compiled: Callable[..., torch.Tensor]
    eager: nn.Module
    draw: Callable[[], Sequence[torch.Tensor]]
    training: bool = False


class Halves(nn.Module):
    """Two graphs, of which the second is given what the first has left."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 96), nn.Linear(96, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        between = self.first(x).relu()
        torch._dynamo.graph_break()
        result: torch.Tensor = self.second(between).relu() + between.sum()
        return result


def _program(name: str, model: nn.Module, draw: Callable[[], Any], *, farm: Farm, training: bool = False) -> Program:
    eager = copy.deepcopy(model)
    compiled = torch.compile(model, backend=farm.backend, mode="reduce-overhead")
    return Program(name=name, compiled=compiled, eager=eager, draw=draw, training=training)


def _programs(device: torch.device, farm: Farm) -> list[Program]:
    torch.manual_seed(0)
    perceptron = nn.Sequential(nn.Linear(64, 256), nn.LayerNorm(256), nn.GELU(), nn.Linear(256, 8)).to(device)
    trained = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 8)).to(device)
    convolutional = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()).to(device)
    rows = lambda: (torch.randn(32, 64, device=device),)  # noqa: E731 - one for three
    return [
        _program("a decoder", *_decoder(device), farm=farm),
        _program("a perceptron", perceptron, rows, farm=farm),
        _program("training", trained, rows, farm=farm, training=True),
        _program("two graphs", Halves().to(device), rows, farm=farm),
        _program("convolutions", convolutional, lambda: (torch.randn(4, 3, 16, 16, device=device),), farm=farm),
    ]


def _decoder(device: torch.device) -> tuple[nn.Module, Callable[[], Any]]:
    model = models.DecodingStep(hidden_size=128, layers=2, heads=4, vocabulary=500, most_tokens=64).to(device)
    with torch.no_grad():
        # The cache takes its memory when it is written first: before, so that it is an input of the graph.
        model(torch.zeros(1, 1, dtype=torch.long, device=device), torch.tensor([0], device=device))
    places = iter(range(1, 64))
    return model, lambda: (
        torch.randint(0, 500, (1, 1), device=device),
        torch.tensor([next(places)], device=device),
    )


def _call_in_turn(programs: Sequence[Program]) -> dict[str, float]:
    """By how much each was off at most, as a share of the largest value."""
    off = dict.fromkeys((each.name for each in programs), 0.0)
    for number in range(_ROUNDS):
        torch.compiler.cudagraph_mark_step_begin()
        order = [*programs[number % len(programs) :], *programs[: number % len(programs)]]
        results = [_called(each) for each in order]
        for each, pairs in zip(order, [_gone_backward(*result) for result in results], strict=True):
            off[each.name] = max(off[each.name], *(_share(ours, theirs) for ours, theirs in pairs))
    return off


def _called(program: Program) -> tuple[Program, torch.Tensor, torch.Tensor]:
    arguments = program.draw()
    with torch.set_grad_enabled(program.training):
        return program, program.compiled(*arguments), program.eager(*arguments)


def _gone_backward(
    program: Program, ours: torch.Tensor, theirs: torch.Tensor
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    pairs = [(ours.detach().clone(), theirs.detach())]
    if program.training:
        weights = list(program.compiled.parameters()), list(program.eager.parameters())  # type: ignore[attr-defined]
        ours.square().sum().backward()
        theirs.square().sum().backward()
        for each, twin in zip(*weights, strict=True):
            pairs.append((each.grad.clone(), twin.grad))
            each.grad = twin.grad = None
    return pairs


def _share(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return ((ours.double() - theirs.double()).abs().max() / theirs.double().abs().max().clamp_min(1e-12)).item()


def _look_at_pools(farm: Farm, devices: Sequence[torch.device]) -> bool:
    programs = [(device, each) for device in devices for each in _programs(device, farm)]
    off: dict[str, float] = {}
    for device in devices:
        with torch.cuda.device(device):
            own = [each for place, each in programs if place == device]
            off |= {f"{device}, {name}": value for name, value in _call_in_turn(own).items()}
    # Once more with the programs of all GPUs between each other.
    again = _call_in_turn([each for _, each in sorted(programs, key=lambda pair: pair[1].name)])
    graphs = {str(device): graphs_on(device) for device in devices}
    # Forward and backward of training, and both halves, are graphs of their own.
    right = max(*off.values(), *again.values()) < _TOLERANCE and all(number >= 7 for number in graphs.values())
    right &= all(record.outcome in ("compiled", "hit") and not record.unrecorded for record in stats())
    _say(right, f"programs in turn: off by {off}; of all GPUs in turn: {again}; graphs {graphs}")
    return right


def _look_at_takeover(address: str, device: torch.device) -> bool:
    """Calls go on while the farm compiles; its program is loaded by another thread, and recorded by this one."""
    farm = Farm(address, on_miss="eager")
    torch.compiler.reset()
    model = nn.Sequential(nn.Linear(64, 320), nn.GELU(), nn.Linear(320, 8)).to(device)
    program = _program("taken over", model, lambda: (torch.randn(32, 64, device=device),), farm=farm)
    off, moment = _call_in_turn([program])["taken over"], threading.Event()
    meanwhile, waited = stats()[-1].outcome, 0.0
    while stats()[-1].outcome == "eager" and waited < _PATIENCE_SECONDS:
        moment.wait(0.2)
        waited += 0.2
    off = max(off, _call_in_turn([program])["taken over"])
    graphs, record = graphs_on(device), stats()[-1]
    right = (meanwhile, record.outcome, record.unrecorded, graphs) == ("eager", "compiled", "", 1) and off < _TOLERANCE
    _say(right, f"taken over: {meanwhile}, then {record.outcome}; off by {off}; graphs {graphs}")
    farm.close()
    return right


def _say(right: bool, what: str) -> None:
    print(f"{'right' if right else 'WRONG'}: {what}", flush=True)


def main() -> int:
    devices = [torch.device("cuda", number) for number in range(torch.cuda.device_count())]
    if not devices:
        print("this machine has no GPU that torch can use")
        return 2
    with tempfile.TemporaryDirectory() as place, serve(Path(place), device="cuda") as served:
        farm = Farm(served.address)
        right = _look_at_pools(farm, devices)
        farm.close()
        right &= _look_at_takeover(served.address, devices[0])
        if not right:
            print(served.log.read_text())
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
