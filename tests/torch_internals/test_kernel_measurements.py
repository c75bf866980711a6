"""Canaries of torch_internals/kernel_measurements.py."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from compilefarm.torch_internals.kernel_measurements import measure_within


def test_what_is_measured_on_a_gpu_is_measured_within_the_context(monkeypatch: pytest.MonkeyPatch) -> None:
    benchmarking = importlib.import_module("torch._inductor.runtime.benchmarking")
    # This object is replaced for the test, with one that measures without a GPU.
    benchmarker = benchmarking.TritonBenchmarker()
    benchmarker.triton_do_bench = lambda call, return_mode: happened.append("measured") or call() or 1.0
    monkeypatch.setattr(benchmarking, "benchmarker", benchmarker)
    monkeypatch.setattr(benchmarking, "_gpu_benchmark_lock_context", None, raising=False)
    happened = list[str]()

    @contextmanager
    def context() -> Iterator[None]:
        happened.append("began")
        yield
        happened.append("ended")

    measure_within(context)
    # Variants of a kernel are measured by the second, what is chosen among by the first.
    assert benchmarking.benchmarker.benchmark(lambda: None, device="cuda") == 1.0
    assert happened == ["began", "measured", "ended"]
    benchmarking.benchmarker.benchmark_gpu(lambda: None)
    assert happened == ["began", "measured", "ended"] * 2
