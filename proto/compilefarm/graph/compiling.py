"""Graphs through Inductor: what a worker does with a job, and a pod that goes without the farm."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._guards import TracingContext, tracing  # torch/_guards.py
from torch._subclasses import FakeTensorMode  # torch/_subclasses/fake_tensor.py

from compilefarm.graph.targets import cacheable_names
from compilefarm.graph.tracing import not_faking


def compile_lock() -> contextlib.AbstractContextManager[object]:
    """The lock under which Dynamo compiles; to be held by whoever reads or changes torch's settings.

    Settings are patched for the whole process (torch/utils/_config_module.py: ConfigPatch), so a load beside another
    load, or beside a compile, would work with settings of the other.
    """
    lock: contextlib.AbstractContextManager[object]
    lock = importlib.import_module("torch._dynamo.convert_frame").compile_lock
    return lock


def compile_to_program(
    graph_module: torch.fx.GraphModule,
    inputs: Sequence[Any],
    *,
    fake_mode: FakeTensorMode,
    inductor_options: Mapping[str, Any],
    functorch_options: Mapping[str, Any],
    static_inputs: Sequence[int] = (),
) -> Any:
    """Compiles a graph; the result is called with the graph's inputs.

    Args:
        graph_module: the graph, with `meta["example_value"]` on every node: without it the autograd cache declines the
            graph silently and nothing can be saved (torch/_functorch/_aot_autograd/autograd_cache.py).
        inputs: fake inputs in `fake_mode`. Real ones would be made symbolic by standalone_compile.
        fake_mode: the mode the inputs were made in.
        inductor_options: for torch._inductor.config.
        functorch_options: for torch._functorch.config.
        static_inputs: numbers of the inputs that are at the same place in memory at each call.
    """
    # Torch saves graphs that it can tell apart by its own keys. The farm has its own; what they hold may be saved.
    saved = {"unsafe_marked_cacheable_functions": dict.fromkeys(cacheable_names(graph_module), "compilefarm")}
    standalone_compile = importlib.import_module("torch._inductor.standalone_compile").standalone_compile
    settings = {
        **functorch_options,
        # Say why a graph cannot be saved instead of compiling it for nothing.
        "strict_autograd_cache": True,
        # The backward belongs to the artifact; torch 2.11 lowers it at the first backward() otherwise.
        "force_non_lazy_backward_lowering": True,
    }
    with (
        tracing(TracingContext(fake_mode)),
        torch._functorch.config.patch(settings),  # torch/_functorch/config.py
        _with_static_inputs(static_inputs),
        _pickling_real_tensors(),
    ):
        return standalone_compile(
            graph_module,
            list(inputs),
            dynamic_shapes="from_tracing_context",
            options={"config_patches": {**inductor_options, **saved}},
            aot=True,
        )


@contextlib.contextmanager
def _with_static_inputs(numbers: Sequence[int]) -> Iterator[None]:
    """Inside, AOTAutograd takes inputs for static that Dynamo would have marked; a rebuilt graph bears no such marks.

    Stands in for what reads the marks (torch/_functorch/_aot_autograd/frontend_utils.py).
    """
    module: Any = importlib.import_module("torch._functorch.aot_autograd")
    original = module._try_get_metadata_from_dynamo
    module._try_get_metadata_from_dynamo = lambda *_: (None, list(numbers))
    try:
        yield
    finally:
        module._try_get_metadata_from_dynamo = original


@contextlib.contextmanager
def _pickling_real_tensors() -> Iterator[None]:
    """Inside, programs are pickled as they are outside of a compile: there the elements of a tensor on a GPU can be
    read, such as those of an index that is written in the model (`x[[0, 2]]`). Torch does so itself after 2.11.

    Stands in for what pickles them (torch/_functorch/_aot_autograd/autograd_cache.py).
    """
    cache: Any = importlib.import_module("torch._functorch._aot_autograd.autograd_cache").AOTAutogradCache
    original = cache._pickle_entry

    def pickle_entry(entry: Any, remote: bool) -> Any:
        with not_faking():
            return original(entry, remote)

    cache._pickle_entry = staticmethod(pickle_entry)
    try:
        yield
    finally:
        cache._pickle_entry = staticmethod(original)
