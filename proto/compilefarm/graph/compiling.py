"""Graphs through Inductor: what a worker does with a job, and a pod that goes without the farm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from compilefarm.graph.freezing import FREEZING
from compilefarm.graph.targets import cacheable_names
from compilefarm.torch_internals.compiling import compile_graph, tracing_with
from compilefarm.torch_internals.fake_tensors import FakeTensorMode
from compilefarm.torch_internals.freezing import freezing_inputs

_KEPT = "always_keep_tensor_constants"


def compile_to_program(
    graph_module: torch.fx.GraphModule,
    inputs: Sequence[Any],
    *,
    fake_mode: FakeTensorMode,
    inductor_options: Mapping[str, Any],
    functorch_options: Mapping[str, Any],
    static_inputs: Sequence[int] = (),
    frozen_inputs: Sequence[int] = (),
    tuned_ahead: bool = True,
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
        frozen_inputs: numbers of the inputs of which the program may keep what it makes of them alone.
        tuned_ahead: kernels for GPUs are tuned while the graph is compiled, on integers that are all zero. A kernel
            that asserts other ones would end all that its process can do on the GPU.
    """
    # Torch saves graphs that it can tell apart by its own keys. The farm has its own; what they hold may be saved.
    saved = {"unsafe_marked_cacheable_functions": dict.fromkeys(cacheable_names(graph_module), "compilefarm")}
    with tracing_with(fake_mode), freezing_inputs(frozen_inputs):
        return compile_graph(
            graph_module,
            inputs,
            # What torch itself freezes it does not save. Elements of weights are not to be written into kernels.
            inductor={**inductor_options, **saved, FREEZING: False} | ({_KEPT: True} if frozen_inputs else {}),
            functorch=functorch_options,
            static_inputs=static_inputs,
            tuned_ahead=tuned_ahead,
        )
