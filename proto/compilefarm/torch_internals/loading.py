"""Loads of programs that Inductor has compiled, without its compiler."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx import Proxy
from torch.overrides import TorchFunctionMode

from compilefarm.torch_internals.deferred_imports import without_archives
from compilefarm.torch_internals.operators import OpOverload
from compilefarm.torch_internals.pytrees import iterate_leaves
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


def spare_saved_tensors(entry: Any) -> None:
    """Has a backward pass leave what the forward pass has saved as it is, where that is wanted once more
    (`retain_graph=True`, `create_graph=True`).

    Torch compiles a backward pass at its first call, and has it write to saved tensors if it is not to be called again;
    if it has compiled another it refuses such calls (torch/_functorch/_aot_autograd/runtime_wrappers.py:
    `bw_donated_idxs`). A program is compiled before anybody knows.
    """
    donated = entry.runtime_metadata.bw_donated_idxs
    if entry.compiled_bw is not None and donated:
        entry.compiled_bw.result.donated = tuple(donated)
        entry.runtime_metadata.bw_donated_idxs = []


def trace_sizes(entry: Any) -> None:
    """Has the backward pass that compiled autograd reads be read where it makes tensors of sizes that differ from call
    to call: torch traces it, and operators that take no tensor do not see that a size is traced
    (torch/_functorch/_aot_autograd/aot_autograd_result.py: SerializedGraphModule)."""
    serialized = entry.serialized_bw_module
    if serialized is not None:
        serialized.fn = functools.partial(_with_traced_sizes, serialized.fn)


def _with_traced_sizes(function: Callable[..., Any], *args: Any) -> Any:
    with _TracingSizes():
        return function(*args)


class _TracingSizes(TorchFunctionMode):  # type: ignore[misc]  # torch says no types
    """Inside, operators become nodes of the graph that one of their arguments is traced for."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        proxy = next((leaf for leaf in iterate_leaves((args, kwargs)) if isinstance(leaf, Proxy)), None)
        if proxy is not None and isinstance(func, OpOverload):
            return proxy.tracer.create_proxy("call_function", func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


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
        torch._inductor.debug, whose import takes a quarter of a second, and end measurements of compiles.

        Attributes:
            donated: numbers of the inputs that a backward pass writes to.
        """

        donated: Sequence[int] = ()

        def __call__(self, inputs: list[Any]) -> Any:
            if self.donated and torch._C._autograd._get_current_graph_task_keep_graph():
                for number in self.donated:
                    inputs[number] = _copied(inputs[number])
            if torch.autograd.profiler._is_profiler_enabled:
                importlib.import_module("torch._inductor.debug")
                return super().__call__(inputs)
            return self.current_callable(inputs)

    return LoadedGraph


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of its own, with the strides that the program was compiled for."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    memory = tensor.as_strided((last + 1 if tensor.numel() else 0,), (1,)).clone()
    return memory.as_strided(tensor.shape, tensor.stride(), 0)
