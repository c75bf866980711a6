"""AOTAutograd: a graph as the graphs of plain tensors that it amounts to, forward and backward."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._dispatch.python import no_python_dispatcher  # torch/_dispatch/python.py
from torch._dynamo.utils import flatten_graph_inputs  # torch/_dynamo/utils.py
from torch._functorch.aot_autograd import aot_module_simplified  # torch/_functorch/aot_autograd.py
from torch._functorch.partitioners import (  # torch/_functorch/partitioners.py
    min_cut_rematerialization_partition,
)
from torch._guards import TracingContext  # torch/_guards.py

from compilefarm.torch_internals.dynamo import is_container
from compilefarm.torch_internals.fake_tensors import leaving_fake_mode
from compilefarm.torch_internals.settings import FUNCTORCH

__all__ = ["compile_parts"]

# Takes a graph, its fake inputs, and which of them are at the same place in memory at each call.
_CompilePart = Callable[[torch.fx.GraphModule, Sequence[Any], Sequence[int]], Callable[..., Any]]


def compile_parts(
    graph_module: torch.fx.GraphModule,
    inputs: Sequence[Any],
    *,
    inference: _CompilePart,
    forward: _CompilePart,
    backward: _CompilePart,
    decompositions: Mapping[Any, Callable[..., Any]],
    prepare: Callable[[torch.fx.GraphModule], None] = lambda _: None,
) -> Callable[..., Any]:
    """Traces a graph down to plain tensors, and has each graph that comes of it compiled.

    Torch puts tensor subclasses together and takes them apart around the programs, and guesses the metadata of
    gradients, as it does for every compiler.

    Args:
        graph_module: the graph, as Dynamo captured it.
        inputs: one for each placeholder; lists of tensors where it is one of compiled autograd.
        inference: compiles the one graph where no gradients are wanted.
        forward: compiles the forward pass where they are.
        backward: compiles the backward pass, at once: later it could fail no more without harm.
        decompositions: what operators become while they are traced; all others stay.
        prepare: changes the graph of both passes, before it is partitioned.

    Returns:
        A callable that takes what the graph takes, in order.
    """

    def compile_flat(flat: torch.nn.Module, inputs: Sequence[Any]) -> Callable[..., Any]:
        # Only the lowering is told to be at once; what is compiled inside finds the settings of the user's.
        # Tokens are made within the graphs, as for Inductor.
        with FUNCTORCH.patch(force_non_lazy_backward_lowering=True, unlift_effect_tokens=True):
            program: Callable[..., Any] = aot_module_simplified(
                flat,
                inputs,
                fw_compiler=_compiler(forward),
                bw_compiler=_compiler(_sparing_saved_tensors(backward)),
                inference_compiler=_compiler(inference),
                partition_fn=functools.partial(_partition, prepare=prepare),
                decompositions=dict(decompositions),
                keep_inference_input_mutations=True,
            )
        return program

    if any(map(is_container, inputs)):
        flattened: Callable[..., Any] = flatten_graph_inputs(graph_module, inputs, compile_flat)
        return flattened
    return compile_flat(graph_module, inputs)


def _partition(graph_module: Any, inputs: Any, *, prepare: Callable[[Any], None], **given: Any) -> Any:
    prepare(graph_module)
    # To find equal nodes it imports all of Inductor's lowerings (torch/_functorch/compile_utils.py: fx_graph_cse);
    # Inductor finds them in each part.
    with FUNCTORCH.patch(cse=False):
        return min_cut_rematerialization_partition(graph_module, inputs, **given)


def _compiler(compile_part: _CompilePart) -> Callable[..., Any]:
    def compile_plain(graph_module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[[list[Any]], Any]:
        # AOTAutograd traces in these modes, and what is traced is done.
        with leaving_fake_mode(), no_python_dispatcher():
            return _boxed(compile_part(graph_module, inputs, _static_inputs()))

    return compile_plain


def _sparing_saved_tensors(compile_part: _CompilePart) -> _CompilePart:
    """Compiles a backward pass that writes to nothing it is given, and may be called again: torch would refuse that
    (torch/_functorch/_aot_autograd/runtime_wrappers.py: `bw_donated_idxs`)."""

    def compile_backward(graph_module: torch.fx.GraphModule, inputs: Sequence[Any], static: Sequence[int]) -> Any:
        context = TracingContext.try_get()
        metadata = None if context is None else context.fw_metadata
        if metadata is not None and metadata.bw_donated_idxs:
            # One list for what is looked at when it is compiled, and when it is called.
            metadata.bw_donated_idxs.clear()
        return compile_part(graph_module, inputs, static)

    return compile_backward


def _static_inputs() -> Sequence[int]:
    context = TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    return [] if metadata is None else list(metadata.static_input_indices or ())


def _boxed(program: Callable[..., Any]) -> Callable[[list[Any]], Any]:
    """As AOTAutograd calls programs: with a list, which the program empties."""

    def run(arguments: list[Any]) -> Any:
        inputs = tuple(arguments)
        arguments.clear()
        return program(*inputs)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run
