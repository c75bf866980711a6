"""Compiles of a graph by Inductor to a program that can be saved."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch._guards import TracingContext, tracing  # torch/_guards.py

from compilefarm.torch_internals.fake_tensors import FakeTensorMode, leaving_fake_mode
from compilefarm.torch_internals.generated_code import measuring_if_possible
from compilefarm.torch_internals.settings import FUNCTORCH

_STANDALONE = "torch._inductor.standalone_compile"
_AUTOGRAD_CACHE = "torch._functorch._aot_autograd.autograd_cache"
_OUTPUT_CODE = "torch._inductor.output_code"
_TUNED_AHEAD = "triton.autotune_at_compile_time"
_COMPILING = (
    "torch._inductor.compile_fx",
    _STANDALONE,
    "torch._inductor.async_compile",
    # These three are imported by the first compile with a kernel otherwise: a tenth of a second.
    "sympy.physics.units",
    "sympy.tensor.tensor",
    "torch.utils.cpp_extension",
)


def import_compiler() -> None:
    """Imports what compiling needs: seconds of work."""
    for name in _COMPILING:
        importlib.import_module(name)


def compile_lock() -> AbstractContextManager[object]:
    """The lock under which Dynamo compiles; to be held by whoever reads or changes torch's settings.

    Settings are patched for the whole process (torch/utils/_config_module.py: ConfigPatch), so a load beside another
    load, or beside a compile, would work with settings of the other.
    """
    lock: AbstractContextManager[object] = importlib.import_module("torch._dynamo.convert_frame").compile_lock
    return lock


def tracing_with(mode: FakeTensorMode) -> AbstractContextManager[Any]:
    """Inside, torch traces in a context of its own with these fake tensors, and adds nothing to that of Dynamo."""
    context: AbstractContextManager[Any] = tracing(TracingContext(mode))
    return context


def compile_graph(
    graph_module: Any,
    inputs: Sequence[Any],
    *,
    inductor: Mapping[str, Any],
    functorch: Mapping[str, Any],
    static_inputs: Sequence[int],
    tuned_ahead: bool = True,
) -> Any:
    """Compiles a graph, within `tracing_with`; the result is called with its inputs, and has `serialize`.

    Args:
        graph_module: the graph.
        inputs: fake inputs, in the mode that is traced with.
        inductor: settings of Inductor.
        functorch: settings of functorch.
        static_inputs: numbers of the inputs that are at the same place in memory at each call.
        tuned_ahead: kernels for GPUs are tuned while the graph is compiled, on integers that are all zero
            (torch/_inductor/standalone_compile.py). Otherwise, and where that fails, at the first call, on what that is
            given.

    Raises:
        not_serializable_error: its result cannot be saved.
    """
    settings = {
        **functorch,
        # Say why a graph cannot be saved instead of compiling it for nothing.
        "strict_autograd_cache": True,
        # The backward belongs to the program; torch 2.11 lowers it at the first backward() otherwise.
        "force_non_lazy_backward_lowering": True,
    }
    how = {} if tuned_ahead else {_TUNED_AHEAD: False}
    standalone_compile = importlib.import_module(_STANDALONE).standalone_compile
    with (
        FUNCTORCH.patch(settings),
        _with_static_inputs(static_inputs),
        _pickling_real_tensors(),
        _leaving_backwards_to_loads(),
        measuring_if_possible(),
    ):
        return standalone_compile(
            graph_module,
            list(inputs),
            dynamic_shapes="from_tracing_context",
            options={"config_patches": {**inductor, **how}},
            aot=True,
        )


def not_serializable_error() -> type[Exception]:
    """What a compile raises when torch cannot save its result."""
    error: type[Exception] = importlib.import_module(_AUTOGRAD_CACHE).BypassAOTAutogradCache
    return error


@contextmanager
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


@contextmanager
def _pickling_real_tensors() -> Iterator[None]:
    """Inside, programs are pickled as they are outside of a compile: there the elements of a tensor on a GPU can be
    read, such as those of an index that is written in the model (`x[[0, 2]]`). Torch does so itself after 2.11.

    Stands in for what pickles them (torch/_functorch/_aot_autograd/autograd_cache.py).
    """
    cache: Any = importlib.import_module(_AUTOGRAD_CACHE).AOTAutogradCache
    original = cache._pickle_entry

    def pickle_entry(entry: Any, remote: bool) -> Any:
        with leaving_fake_mode():
            return original(entry, remote)

    cache._pickle_entry = staticmethod(pickle_entry)
    try:
        yield
    finally:
        cache._pickle_entry = staticmethod(original)


@contextmanager
def _leaving_backwards_to_loads() -> Iterator[None]:
    """Inside, a backward that is not recorded as a CUDA graph is not tied to the graphs of its forward, which exist
    only where the forward has run; torch ends the compile with an AssertionError where it has not. What loads the
    program ties them.

    Stands in for what ties them (torch/_inductor/output_code.py: Backward Generation Handling).
    """
    module: Any = importlib.import_module(_OUTPUT_CODE)
    original = module.maybe_handle_backward_generation
    module.maybe_handle_backward_generation = lambda *_: None
    try:
        yield
    finally:
        module.maybe_handle_backward_generation = original
