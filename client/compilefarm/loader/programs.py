"""Loads the program of an artifact: makes a callable of its bytes."""

from __future__ import annotations

import contextlib
import functools
import importlib
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._guards import TracingContext, tracing  # torch/_guards.py
from torch._subclasses import FakeTensorMode  # torch/_subclasses/fake_tensor.py
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from compilefarm.graph.compiling import compile_lock
from compilefarm.loader.recording import Recording, recorded_with
from compilefarm.loader.wrappers import moved_wrapper

_LOADING = (
    "torch._functorch._aot_autograd.aot_autograd_result",
    "torch._inductor.codecache",
    "torch._inductor.cudagraph_utils",
)
# What launches Triton's kernels; a second, most of it for Triton.
_LAUNCHING = ("torch._inductor.runtime.triton_heuristics",)


def preload_loader(*, with_triton: bool) -> None:
    """Imports what loading needs: work that need not wait for an answer.

    Args:
        with_triton: with what launches its kernels.
    """
    for name in (*_LOADING, *(_LAUNCHING if with_triton else ())):
        importlib.import_module(name)


def deserialize_program(
    content: bytes,
    *,
    cuda_device: int = 0,
    recording: Mapping[str, object] | None = None,
    on_unrecorded: Callable[[Exception], None] | None = None,
) -> Callable[..., Any]:
    """Loads a program. Unpickles, so the bytes must be trusted by now.

    Args:
        content: a finished program, as compilefarm.builder.programs makes it.
        cuda_device: the GPU that it is to run on, where it runs on one.
        recording: Inductor's settings if the program is to be recorded as CUDA graphs.
        on_unrecorded: told why it cannot be, once, and then it runs without graphs; None: calls end with the error.

    CompiledArtifact.load would also hash torch's whole source tree to compare it with the worker's
    (torch/_inductor/codecache.py: torch_key); the manifest's environment has said that already. What it calls then
    (torch/_functorch/_aot_autograd/aot_autograd_result.py: deserialize_bundled_cache_entry) copies the program to save
    it again, and leaves four functions around it that every call goes through.
    """
    preload_loader(with_triton=False)
    # Of its own: in Dynamo's context the load would add to the guards and strides of the graph being traced.
    context = TracingContext(FakeTensorMode(shape_env=ShapeEnv()))
    # One thread: with more, Inductor starts a pool of processes to compile Triton kernels, and there is nothing to
    # compile (torch/_inductor/async_compile.py).
    settings = {"triton.cudagraphs": False, **(recording or {}), "compile_threads": 1}
    state = Recording(on_end=on_unrecorded) if recording and on_unrecorded else None
    with (
        compile_lock(),
        _without_the_compiler(state),
        tracing(context),
        torch._inductor.config.patch(settings),
        recorded_with(state) if recording else contextlib.nullcontext(),
    ):
        entry, *_ = pickle.loads(content)  # noqa: S301 - part of an artifact
        if cuda_device:
            _move(entry, cuda_device)
        program = _wrapped(entry)
    return state.retrying(program) if state else _unpacked(program)


def _wrapped(entry: Any) -> Callable[[list[Any]], Any]:
    """What calls a BundledAOTAutogradResult: with a list, which it empties."""
    boxed = importlib.import_module("torch._inductor.utils").BoxedBool
    boxed_device = importlib.import_module("torch._inductor.cudagraph_utils").BoxedDeviceIndex
    # The manifest has those that matter, in terms of the graph's symbols.
    entry.guards_expr = None
    given = {
        "cudagraphs": boxed(torch._inductor.config.triton.cudagraphs),
        "boxed_forward_device_index": boxed_device(None),
    }
    program: Callable[[list[Any]], Any] = entry.wrap_post_compile([], entry.sanitized_aot_config, given)
    return program


def _unpacked(program: Callable[[list[Any]], Any]) -> Callable[..., Any]:
    return lambda *inputs: program([*inputs])


def _move(entry: Any, cuda_device: int) -> None:
    """Has a program run on another GPU than number 0, which workers compile for."""
    code_hash = importlib.import_module("torch._inductor.codecache").code_hash
    for part in (entry.compiled_fw, entry.compiled_bw):
        if part is not None:
            graph = part.result
            graph.source_code = moved_wrapper(graph.source_code, device=cuda_device)
            graph.cache_key = code_hash(graph.source_code)
            graph.device_idxs = {cuda_device if number == 0 else number for number in graph.device_idxs}
            graph.constants = {
                name: held.to(torch.device("cuda", cuda_device))
                if isinstance(held, torch.Tensor) and held.is_cuda
                else held
                for name, held in (graph.constants or {}).items()
            }


@contextlib.contextmanager
def _without_the_compiler(recording: Recording | None) -> Iterator[None]:
    """Inside, a cached graph becomes callable without importing the compiler: half a second, for logs and counters.

    Stands in for FxGraphCache.cache_hit_post_compile (torch/_inductor/codecache.py) and does the two things of it that
    a program needs: put its kernels into place, and run its wrapper.
    """
    cache = importlib.import_module("torch._inductor.codecache").FxGraphCache
    bundler = importlib.import_module("torch._inductor.triton_bundler").TritonBundler
    original = cache.cache_hit_post_compile

    def cache_hit_post_compile(graph: Any, cache_info: dict[str, Any], constants: Any) -> tuple[Any, dict[str, Any]]:
        if graph._triton_bundle:
            bundler.read_and_emit(graph._triton_bundle)
        if recording is not None:
            recording.writes |= bool(graph.mutated_input_idxs)
        graph.after_deserialization(constants)
        graph.__class__ = _loaded_type()
        return graph, cache_info

    cache.cache_hit_post_compile = staticmethod(cache_hit_post_compile)
    try:
        yield
    finally:
        cache.cache_hit_post_compile = staticmethod(original)


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
