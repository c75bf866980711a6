"""Graphs with max-autotune on one GPU and on several: `python -m tests.gpu.spread [--graphs 16] [--gpus N]`.

A farm with an empty store compiles so many different graphs, all asked for at once, first with one GPU, then with N,
each with `--slots` at a time. Printed are the seconds until the last result was there, and how many times as fast the
N were; what this process imports for its first result passes before. Every result is compared with the uncompiled
graph; the exit status is 1 if one is wrong, or was not compiled by it. With `--device cpu` the same is done with 1 and
N workers of this processor, to try the program.

What a product costs depends on its numbers: kernels of `--dtype bfloat16` use a GPU's matrix units; those of float32,
which torch by default computes in full, do not, and take processors several times as long to compile.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from compilefarm.client import Farm
from tests.farm.serving import serve

_MAX_AUTOTUNE = {"max_autotune": True}
# Of sums of 2,048 products, the numbers of which are about 1.
_TOLERANCES = {torch.float32: 1e-3, torch.bfloat16: 5e-2}
# In the log of a farm.
_JOB = re.compile(r"job \S+: (\S+) made \d+ bytes in (\d+\.\d) s")

Program = tuple[torch.fx.GraphModule, list[torch.Tensor]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A set of graphs that a farm was asked for.

    Attributes:
        seconds: from the first request until the last result.
        compiled: how many of them the farm has compiled.
        wrong: of how many the result is not that of eager.
        jobs: after how many seconds each job of a worker was done, by the worker.
    """

    seconds: float
    compiled: int
    wrong: int
    jobs: Mapping[str, Sequence[float]]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", type=int, default=16)
    parser.add_argument("--gpus", type=int, default=0, help="how many of them; 0: all")
    parser.add_argument("--slots", type=int, default=1, help="jobs at a time on each GPU")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--width", type=int, default=2048, help="of the matrices")
    given = parser.parse_args(arguments)
    many = given.gpus or (torch.cuda.device_count() if given.device == "cuda" else 2)
    spreads = []
    for workers in (1, many):
        programs = Programs(device=given.device, dtype=getattr(torch, given.dtype), width=given.width)
        spread = compile_on(workers, programs, slots=given.slots, graphs=given.graphs)
        print(
            f"{workers} workers: {spread.seconds:.1f} s for {given.graphs} graphs, {spread.compiled} compiled, "
            f"{spread.wrong} wrong",
            flush=True,
        )
        for worker, jobs in spread.jobs.items():
            print(f"  {worker}: {' '.join(f'{each:.1f}' for each in jobs)} s", flush=True)
        spreads.append(spread)
    print(f"{many} workers were {spreads[0].seconds / spreads[1].seconds:.2f} times as fast as one")
    return int(any(spread.wrong or spread.compiled != given.graphs for spread in spreads))


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """Graphs of which each is like no other.

    Attributes:
        device: where their inputs lie.
        dtype: of all numbers.
        width: of the matrices.
    """

    device: str
    dtype: torch.dtype
    width: int

    def make(self, number: int) -> Program:
        """Returns a graph and its inputs: products of its own sizes with a softmax between them, of numbers about 1."""
        rows, middle = 64 * (number + 1), self.width - 64 * number
        graph = torch.fx.Graph()
        x, first, second = (graph.placeholder(name) for name in ("x", "first", "second"))
        product = graph.call_function(torch.matmul, (x, first))
        shares = graph.call_function(torch.nn.functional.softmax, (product,), {"dim": -1})
        graph.output((graph.call_function(torch.matmul, (shares, second)),))
        inputs = [
            self._draw(number, rows, self.width),
            self._draw(number + 1, self.width, middle) / self.width**0.5,
            self._draw(number + 2, middle, self.width) * middle**0.5,
        ]
        return torch.fx.GraphModule(torch.nn.Module(), graph), inputs

    def _draw(self, seed: int, *shape: int) -> torch.Tensor:
        generator = torch.Generator(self.device).manual_seed(seed)
        return torch.randn(*shape, device=self.device, dtype=self.dtype, generator=generator)


def compile_on(workers: int, programs: Programs, *, slots: int, graphs: int) -> Spread:
    """Has a new farm compile graphs, all of them asked for at once.

    Args:
        workers: how many it has: a GPU each, or slots of this processor.
        programs: what the graphs are.
        slots: jobs at a time on each GPU.
        graphs: how many.
    """
    asked_for, before = [programs.make(number) for number in range(graphs)], programs.make(graphs)
    options = [f"--slots={workers if programs.device == 'cpu' else slots}"]
    visible = _first_gpus(workers) if programs.device == "cuda" else ""
    with (
        tempfile.TemporaryDirectory() as folder,
        _variable("CUDA_VISIBLE_DEVICES", visible),
        serve(Path(folder), options, device=programs.device) as served,
        ThreadPoolExecutor(graphs) as threads,
    ):
        farm = Farm(served.address, on_failure="error", timeout_seconds=3600)
        farm.compile(*before)
        earlier = served.count("compiled")
        began = time.perf_counter()
        compiled = list(threads.map(lambda each: farm.compile(*each, options=_MAX_AUTOTUNE), asked_for))
        seconds = time.perf_counter() - began
        count = served.count("compiled") - earlier
        jobs: dict[str, list[float]] = {}
        for worker, each in _JOB.findall(served.log.read_text())[earlier:]:
            jobs.setdefault(worker, []).append(float(each))
    wrong = sum(not _is_right(run, *program) for run, program in zip(compiled, asked_for, strict=True))
    return Spread(seconds=seconds, compiled=count, wrong=wrong, jobs=jobs)


def _is_right(run: Callable[..., Any], graph_module: torch.fx.GraphModule, inputs: Sequence[torch.Tensor]) -> bool:
    with torch.no_grad():
        (made,), (expected,) = run(*inputs), graph_module(*inputs)
    tolerance = _TOLERANCES[expected.dtype]
    return torch.allclose(made, expected, rtol=tolerance, atol=tolerance)


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
