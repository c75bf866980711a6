"""Loads of programs that Inductor has compiled, without its compiler."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from compilefarm.torch_internals.deferred_imports import without_archives
from compilefarm.torch_internals.settings import INDUCTOR

_CACHE = "torch._inductor.codecache"
_GRAPHS = "torch._inductor.cudagraph_utils"
_LOADING = ("torch._functorch._aot_autograd.aot_autograd_result", _CACHE, _GRAPHS)


def import_loader() -> None:
    """Imports what loading needs."""
    with without_archives():
        for name in _LOADING:
            importlib.import_module(name)


def make_callable(entry: Any) -> Callable[[list[Any]], Any]:
    """What calls a program (BundledAOTAutogradResult in torch/_functorch/_aot_autograd/aot_autograd_result.py): with a
    list, which it empties. Settings of Inductor say whether it is recorded as CUDA graphs.
    """
    given = {
        "cudagraphs": importlib.import_module("torch._inductor.utils").BoxedBool(INDUCTOR.triton.cudagraphs),
        "boxed_forward_device_index": importlib.import_module(_GRAPHS).BoxedDeviceIndex(None),
    }
    program: Callable[[list[Any]], Any] = entry.wrap_post_compile([], entry.sanitized_aot_config, given)
    return program


@contextmanager
def finishing_with(finish: Callable[[Any, Any], None]) -> Iterator[None]:
    """Inside, `finish` is called to make a graph (CompiledFxGraph) callable with its constants, and nothing else.

    Stands in for FxGraphCache.cache_hit_post_compile (torch/_inductor/codecache.py), which imports the compiler: half a
    second, for logs and counters.
    """
    cache: Any = importlib.import_module(_CACHE).FxGraphCache
    original = cache.cache_hit_post_compile

    def cache_hit_post_compile(graph: Any, cache_info: dict[str, Any], constants: Any) -> tuple[Any, dict[str, Any]]:
        finish(graph, constants)
        return graph, cache_info

    cache.cache_hit_post_compile = staticmethod(cache_hit_post_compile)
    try:
        yield
    finally:
        cache.cache_hit_post_compile = staticmethod(original)


def call_directly(graph: Any) -> None:
    """Has calls of a graph (CompiledFxGraph) that is loaded do no more than the program."""
    graph.__class__ = _loaded_type()


@functools.cache
def _loaded_type() -> type:
    compiled: Any = importlib.import_module("torch._inductor.output_code").CompiledFxGraph

    class LoadedGraph(compiled):  # type: ignore[misc]  # imported late
        """A CompiledFxGraph whose calls do no more than the program. Those of torch also look into
        torch._inductor.debug, whose import takes a quarter of a second, and end measurements of compiles."""

        def __call__(self, inputs: Sequence[Any]) -> Any:
            if torch.autograd.profiler._is_profiler_enabled:
                importlib.import_module("torch._inductor.debug")
                return super().__call__(inputs)
            return self.current_callable(inputs)

    return LoadedGraph
