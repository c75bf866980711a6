"""Counts what a process compiles and measures of Triton's kernels: a loaded program does neither."""

from __future__ import annotations

import importlib
import re
from typing import Any

from compilefarm.torch_internals.counters import inductor_counts

_MEASUREMENT = re.compile(r"benchmarking\.\w+\.benchmark_\w+")


class KernelWork:
    """The kernels that this process has compiled and measured since the counter was made.

    Attributes:
        compiled: kernels of Triton that were compiled, or looked for in Triton's cache.
    """

    def __init__(self) -> None:
        self.compiled = 0
        self._measured_before = _measured()

    @property
    def benchmarks(self) -> int:
        """Variants that were measured, on a GPU or a CPU."""
        return _measured() - self._measured_before


def count_kernel_work(*, with_triton: bool) -> KernelWork:
    """Counts from now on, for as long as this process lives.

    Args:
        with_triton: whether kernels of Triton are counted. Triton takes a second to import, and what computes on a CPU
            alone has none.
    """
    work = KernelWork()
    if not with_triton:
        return work
    triton: Any = importlib.import_module("triton")
    compile_kernel = triton.compile

    def counted_compile(*args: Any, **kwargs: Any) -> Any:
        work.compiled += 1
        return compile_kernel(*args, **kwargs)

    triton.compile = counted_compile
    return work


def _measured() -> int:
    """Returns what torch has counted (torch/_inductor/runtime/benchmarking.py: time_and_count).

    All that measures ends there, tuning kernels as well as choosing among several. `benchmark` counts itself and then
    the one for its device, hence these alone.
    """
    return sum(count for name, count in inductor_counts().items() if _MEASUREMENT.fullmatch(name))
