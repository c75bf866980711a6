"""What Inductor makes of a graph before it writes kernels: its own operators, run one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._guards import TracingContext, tracing
from torch._inductor.compile_fx import compile_fx
from torch.fx import GraphModule, Node

from compilefarm.graph.decode import DecodedJob
from compilefarm.worker.reference import Widening

_NARROW = (torch.bfloat16, torch.float16)


def decompose(decoded: DecodedJob) -> Callable[..., Any]:
    """The graph in those operators, forward and backward; in float32 inside where it is narrower, as kernels are."""
    with (
        tracing(TracingContext(decoded.fake_mode)),
        torch._functorch.config.patch(force_non_lazy_backward_lowering=True),
    ):
        program: Callable[..., Any] = compile_fx(decoded.graph_module, list(decoded.inputs), inner_compile=_program_of)
    return program


def _program_of(graph_module: GraphModule, example_inputs: Sequence[Any], **_: Any) -> Callable[[list[Any]], list[Any]]:
    dtypes = [_dtype_of(node) for node in graph_module.graph.output_node().args[0]]
    given = [value.dtype for value in example_inputs if isinstance(value, torch.Tensor)]
    is_narrow = any(dtype in _NARROW for dtype in (*dtypes, *given))

    def run(arguments: list[Any]) -> list[Any]:
        inputs = list(arguments)
        # As Inductor's programs do, so that memory is given back.
        arguments.clear()
        return _run_wide(graph_module, inputs, dtypes=dtypes) if is_narrow else list(graph_module(*inputs))

    run._boxed_call = True  # type: ignore[attr-defined]  # torch/_functorch/_aot_autograd/utils.py: make_boxed_func
    return run


def _run_wide(graph_module: GraphModule, inputs: Sequence[Any], *, dtypes: Sequence[Any]) -> list[Any]:
    wide = [value.float() if _dtype_of_value(value) in _NARROW else value for value in inputs]
    with Widening(torch.float32):
        outputs = graph_module(*wide)
    for value, own in zip(wide, inputs, strict=True):
        if value is not own:
            own.copy_(value)
    return [value if dtype is None else value.to(dtype) for value, dtype in zip(outputs, dtypes, strict=True)]


def _dtype_of(node: object) -> torch.dtype | None:
    return _dtype_of_value(node.meta.get("val")) if isinstance(node, Node) else None


def _dtype_of_value(value: object) -> torch.dtype | None:
    return value.dtype if isinstance(value, torch.Tensor) else None
