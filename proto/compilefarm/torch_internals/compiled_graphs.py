"""What Inductor keeps of a graph that it has compiled (CompiledFxGraph in torch/_inductor/output_code.py)."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

_CACHE = "torch._inductor.codecache"


def wrapper_modules(graph: Any) -> list[ModuleType]:
    """What the wrapper of a graph became in this process, once for each time that it was loaded."""
    # torch/_inductor/codecache.py: PyCodeCache
    cache = importlib.import_module(_CACHE)
    path = cache.get_path(graph.cache_key, "py")[2]
    return [module for module in cache.PyCodeCache.modules if module.__file__ == path]


def replace_wrapper(graph: Any, source: str) -> None:
    """Gives a graph another wrapper, and the name of the file that it is written to."""
    graph.source_code = source
    graph.cache_key = importlib.import_module(_CACHE).code_hash(source)


def drop_kernels(graph: Any) -> None:
    """Drops all configurations of all kernels of a graph, with every step between source and machine code."""
    graph._triton_bundle = None


def put_kernels_into_place(graph: Any) -> None:
    """Writes the kernels that a graph brings to where Triton looks for them."""
    if graph._triton_bundle:
        importlib.import_module("torch._inductor.triton_bundler").TritonBundler.read_and_emit(graph._triton_bundle)
