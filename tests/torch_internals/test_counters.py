"""Canaries of torch_internals/counters.py."""

from __future__ import annotations

import importlib

from compilefarm.torch_internals.counters import inductor_counts
from compilefarm.worker import kernel_work


def test_counts_are_those_of_this_process() -> None:
    before = inductor_counts()["canary"]
    importlib.import_module("torch._dynamo.utils").counters["inductor"]["canary"] += 1
    assert inductor_counts()["canary"] == before + 1


def test_torch_counts_what_is_measured() -> None:
    # torch/_inductor/runtime/benchmarking.py: time_and_count. Without it an artifact that measures in pods would pass.
    benchmarker = importlib.import_module("torch._inductor.runtime.benchmarking").benchmarker
    work = kernel_work.KernelWork()
    benchmarker.benchmark_cpu(lambda: None, warmup=0, rep=0)
    assert work.benchmarks == 1
