"""A kernel with three configurations, as processes that compile kernels look for the best of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from torch._inductor.runtime.autotune_cache import AutotuneCache


class Configuration(SimpleNamespace):
    """A configuration of a Triton kernel, without Triton."""


def choices() -> Any:
    """The configurations of the kernel."""
    return [Configuration(kwargs={"BLOCK": 64}, num_warps=warps, num_stages=2) for warps in (2, 4, 8)]


def look_up(meta: Any, filename: str) -> tuple[AutotuneCache | None, Any]:
    """What torch asks for before it compiles the kernel (torch/_inductor/runtime/triton_heuristics.py)."""
    cache = AutotuneCache.create(meta, filename, "configs")
    return cache, None if cache is None else cache.read_best(meta, choices())
