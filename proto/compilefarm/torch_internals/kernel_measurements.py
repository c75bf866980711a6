"""Where Inductor measures kernels on a GPU (torch/_inductor/runtime/benchmarking.py)."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any


def measure_within(turn: Callable[[], AbstractContextManager[None]]) -> None:
    """Has each measurement be done within a context, from now on.

    Args:
        turn: makes the context. Measurements that consist of others enter one within another, in one thread.
    """
    benchmarking: Any = importlib.import_module("torch._inductor.runtime.benchmarking")
    if hasattr(benchmarking, "set_gpu_benchmark_lock_context"):
        benchmarking.set_gpu_benchmark_lock_context(turn)
        return
    # torch 2.11 has no place for one. All that measures asks this object.
    benchmarker = benchmarking.benchmarker
    measure = benchmarker.benchmark_gpu

    def measure_in_turn(*args: Any, **kwargs: Any) -> Any:
        with turn():
            return measure(*args, **kwargs)

    benchmarker.benchmark_gpu = measure_in_turn
