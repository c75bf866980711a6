"""Prints how fast programs of a farm run: `python tests/bench/steady.py [--device cuda] [--mode MODE] [MODEL ...]`.

In one process the same model is compiled by Inductor and by the farm that COMPILEFARM_ADDRESS names, with the same
options, and both are called in turn, so that whatever else the machine does hits both. A ratio of 1 says that they are
equally fast; that of Inductor's program with itself shows the noise.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from compilefarm.benchmarks.cases import Case, make_case
from compilefarm.client import Farm

_ROUNDS = 200
_WARM_UP_ROUNDS = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=["mlp", "minilm", "llama"])
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--mode", default=None)
    arguments = parser.parse_args()
    for model in arguments.models:
        _show(model, make_case(model, device=arguments.device), mode=arguments.mode)


def _show(model: str, case: Case, *, mode: str | None) -> None:
    backends = {"inductor": "inductor", "inductor again": "inductor", "farm": Farm().backend}
    functions = {name: _compiled(case, backend, mode=mode) for name, backend in backends.items()}
    seconds = _times(case, functions)
    ratios = {
        name: [mine / theirs for mine, theirs in zip(each, seconds["inductor"], strict=True)]
        for name, each in seconds.items()
        if name != "inductor"
    }
    print(f"{model}, torch {torch.__version__}, mode {mode or 'default'}, {_ROUNDS} calls in turn")
    print(f"  inductor        {statistics.median(seconds['inductor']) * 1e3:.3f} ms")
    for name, each in ratios.items():
        lower, middle, upper = statistics.quantiles(each, n=4)
        print(f"  {name:<15} {middle:.3f} of it, half of the calls between {lower:.3f} and {upper:.3f}")


def _compiled(case: Case, backend: Any, *, mode: str | None) -> Callable[..., Any]:
    function: Callable[..., Any] = torch.compile(case.function, backend=backend, mode=mode, dynamic=case.dynamic)
    case.results(function, case.calls[0])
    return function


def _times(case: Case, functions: Mapping[str, Callable[..., Any]]) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for number in range(_WARM_UP_ROUNDS + _ROUNDS):
        # Who comes first changes, since the first finds other things in the processor's caches.
        names = list(functions) if number % 2 else list(reversed(functions))
        for name in names:
            started = time.perf_counter()
            case.results(functions[name], case.calls[0])
            if number >= _WARM_UP_ROUNDS:
                seconds[name].append(time.perf_counter() - started)
    return seconds


if __name__ == "__main__":
    main()
