"""Graphs with max-autotune on one GPU and on several: `python -m tests.gpu.spread [--graphs 16] [--gpus N]`.

A farm with an empty store compiles so many different graphs, all asked for at once, first with one GPU, then with N,
each with `--slots` at a time. Printed are the seconds until the last result was there, and how many times as fast the
N were. Every result is compared with the uncompiled graph; the exit status is 1 if one is wrong, or was not compiled by
it. With `--device cpu` the same is done with 1 and N workers of this processor, to try the program.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from compilefarm.client import Farm
from tests.farm.serving import serve

_MAX_AUTOTUNE = {"max_autotune": True}
# Products of 2,048 numbers in TF32.
_TOLERANCE = 2e-2

Program = tuple[torch.fx.GraphModule, list[torch.Tensor]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A set of graphs that a farm was asked for.

    Attributes:
        seconds: from the first request until the last result.
        compiled: how many of them the farm has compiled.
        wrong: of how many the result is not that of eager.
    """

    seconds: float
    compiled: int
    wrong: int


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", type=int, default=16)
    parser.add_argument("--gpus", type=int, default=0, help="how many of them; 0: all")
    parser.add_argument("--slots", type=int, default=1, help="jobs at a time on each GPU")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--width", type=int, default=2048, help="of the matrices")
    given = parser.parse_args(arguments)
    many = given.gpus or (torch.cuda.device_count() if given.device == "cuda" else 2)
    spreads = []
    for workers in (1, many):
        spread = compile_on(workers, device=given.device, slots=given.slots, graphs=given.graphs, width=given.width)
        print(
            f"{workers} workers: {spread.seconds:.1f} s for {given.graphs} graphs, {spread.compiled} compiled, "
            f"{spread.wrong} wrong",
            flush=True,
        )
        spreads.append(spread)
    print(f"{many} workers were {spreads[0].seconds / spreads[1].seconds:.2f} times as fast as one")
    return int(any(spread.wrong or spread.compiled != given.graphs for spread in spreads))


def compile_on(workers: int, *, device: str, slots: int, graphs: int, width: int) -> Spread:
    """Has a new farm compile graphs, all of them asked for at once.

    Args:
        workers: how many it has: a GPU each, or slots of this processor.
        device: what for.
        slots: jobs at a time on each GPU.
        graphs: how many.
        width: of the matrices.
    """
    programs = [_program(number, device=device, width=width) for number in range(graphs)]
    options = [f"--slots={workers if device == 'cpu' else slots}"]
    visible = _first_gpus(workers) if device == "cuda" else ""
    with (
        tempfile.TemporaryDirectory() as folder,
        _variable("CUDA_VISIBLE_DEVICES", visible),
        serve(Path(folder), options, device=device) as served,
        ThreadPoolExecutor(graphs) as threads,
    ):
        farm = Farm(served.address, on_failure="error", timeout_seconds=3600)
        began = time.perf_counter()
        compiled = list(threads.map(lambda each: farm.compile(*each, options=_MAX_AUTOTUNE), programs))
        seconds = time.perf_counter() - began
        count = served.count("compiled")
    wrong = sum(not _is_right(run, *program) for run, program in zip(compiled, programs, strict=True))
    return Spread(seconds=seconds, compiled=count, wrong=wrong)


def _program(number: int, *, device: str, width: int) -> Program:
    """A graph like no other: products of its own sizes with a softmax between them, and its inputs."""
    rows, middle = 64 * (number + 1), width - 64 * number
    graph = torch.fx.Graph()
    x, first, second = (graph.placeholder(name) for name in ("x", "first", "second"))
    product = graph.call_function(torch.matmul, (x, first))
    shares = graph.call_function(torch.nn.functional.softmax, (product,), {"dim": -1})
    graph.output((graph.call_function(torch.matmul, (shares, second)),))
    generator = torch.Generator(device).manual_seed(number)
    shapes = ((rows, width), (width, middle), (middle, width))
    inputs = [torch.randn(*shape, device=device, generator=generator) for shape in shapes]
    return torch.fx.GraphModule(torch.nn.Module(), graph), inputs


def _is_right(run: Callable[..., Any], graph_module: torch.fx.GraphModule, inputs: Sequence[torch.Tensor]) -> bool:
    with torch.no_grad():
        (made,), (expected,) = run(*inputs), graph_module(*inputs)
    return torch.allclose(made, expected, rtol=_TOLERANCE, atol=_TOLERANCE)


def _first_gpus(count: int) -> str:
    given = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return ",".join((given or [str(number) for number in range(torch.cuda.device_count())])[:count])


@contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    """Sets an environment variable for programs that are started in the context."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


if __name__ == "__main__":
    sys.exit(main())
