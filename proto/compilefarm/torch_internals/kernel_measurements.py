"""Where Inductor measures kernels on a GPU (torch/_inductor/runtime/benchmarking.py)."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any


def measure_within(make_context: Callable[[], AbstractContextManager[None]]) -> None:
    """Has each measurement be done within a context, from now on.

    Args:
        make_context: makes it. Measurements that consist of others enter one within another, in one thread.
    """
    benchmarking: Any = importlib.import_module("torch._inductor.runtime.benchmarking")
    if hasattr(benchmarking, "set_gpu_benchmark_lock_context"):
        benchmarking.set_gpu_benchmark_lock_context(make_context)
        return
    # torch 2.11 has no place for one. All that measures asks this object.
    benchmarker = benchmarking.benchmarker
    measure = benchmarker.benchmark_gpu

    def measure_within_context(*args: Any, **kwargs: Any) -> Any:
        with make_context():
            return measure(*args, **kwargs)

    benchmarker.benchmark_gpu = measure_within_context
