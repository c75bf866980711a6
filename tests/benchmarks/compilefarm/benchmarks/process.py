"""One process of a benchmark: `python -m compilefarm.benchmarks.process WAY RESULT`. It has caches of its own.

It goes one way from a model to its first result, then compares with eager, and writes what it measured to RESULT as
JSON. Importing torch, making the model and starting CUDA with its libraries are not counted: every way pays them.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from compilefarm.benchmarks.cases import Case, make_case
from compilefarm.benchmarks.results import Result
from compilefarm.benchmarks.ways import WAYS, Means
from compilefarm.core.processes import Start, watch_processes

_COMPILER = re.compile(r"(c\+\+|g\+\+|gcc|cc|clang|clang\+\+)(-[0-9.]+)?")
_CALLS = 30
_LONGEST_CALLING_SECONDS = 3.0
_FEWEST_CALLS = 3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("result", type=Path)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--mode", default=None)
    parser.add_argument("--bundle", type=Path, required=True, help="a folder for what one process leaves another")
    arguments = parser.parse_args()
    _report_ends(arguments.result)
    arguments.result.write_text(json.dumps(asdict(measure(arguments))))
    return 0


def measure(arguments: argparse.Namespace) -> Result:
    """Goes the way and returns what was measured."""
    case = make_case(arguments.model, device=arguments.device)
    _start(arguments.device)
    programs = watch_processes()
    way, means, result = WAYS[arguments.way](), Means(mode=arguments.mode, bundle=arguments.bundle), Result()
    started = time.perf_counter()
    function = way.obtain(case, means)
    first = case.results(function, case.calls[0])
    result.total_seconds = time.perf_counter() - started
    way.describe(result, means)
    result.seconds = dict(means.seconds)
    _describe_work(result, programs)
    outputs = [first, *(case.results(function, given) for given in case.calls[1:])]
    result.peak_memory_bytes = _peak_memory_bytes()
    way.settle()
    result.call_seconds = _warm_seconds(case, function)
    _compare(result, case, outputs)
    way.keep(means)
    return result


def _report_ends(path: Path) -> None:
    """Has whatever ends this process named in its result; the rest goes to stderr as always."""
    hook = sys.excepthook

    def report(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        first_line = next(iter(str(error).strip().splitlines()), "")
        path.write_text(json.dumps(asdict(Result(error=f"{kind.__name__}: {first_line}"))))
        hook(kind, error, traceback)

    sys.excepthook = report


def _start(device: str) -> None:
    """Starts CUDA and its libraries, which every process of a pod does once."""
    x = torch.ones(8, 8, device=device)
    (x @ x).sum().item()


def _describe_work(result: Result, programs: list[Start]) -> None:
    from compilefarm.torch_internals.counters import inductor_counts

    result.programs = len(programs)
    result.compiler_runs = sum(_COMPILER.fullmatch(Path(each.program).name) is not None for each in programs)
    work = inductor_counts()
    result.local_compiles = work["fxgraph_cache_miss"] + work["fxgraph_cache_bypass"]
    # torch/_inductor/runtime/benchmarking.py: time_and_count
    measured = (count for name, count in work.items() if re.fullmatch(r"benchmarking\.\w+\.benchmark_gpu", name))
    result.benchmarks = sum(measured)


def _warm_seconds(case: Case, function: Callable[..., Any]) -> float:
    """The median of some calls, after the first of this size."""
    case.results(function, case.calls[0])
    seconds: list[float] = []
    while len(seconds) < _FEWEST_CALLS or (len(seconds) < _CALLS and sum(seconds) < _LONGEST_CALLING_SECONDS):
        started = time.perf_counter()
        case.results(function, case.calls[0])
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def _peak_memory_bytes() -> int:
    """Of this program alone; getrusage would count what the process was before it became this program."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def _compare(result: Result, case: Case, outputs: list[list[Any]]) -> None:
    for given, found in zip(case.calls, outputs, strict=True):
        expected = case.results(case.function, given)
        for ours, theirs in zip(found, expected, strict=True):
            difference = (ours.double() - theirs.double()).abs().max().item()
            result.difference = max(result.difference, difference)
            result.magnitude = max(result.magnitude, theirs.abs().max().item())
    result.eager_seconds = _warm_seconds(case, case.function)
    if isinstance(case.function, torch.nn.Module):
        result.parameters = sum(weight.numel() for weight in case.function.parameters())


if __name__ == "__main__":
    sys.exit(main())
