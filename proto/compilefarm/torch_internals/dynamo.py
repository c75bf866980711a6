"""What Dynamo is doing while it traces, and what a backend may have it do."""

from __future__ import annotations

from typing import Any

import torch
import torch._dynamo.config
from torch._dynamo._trace_wrapped_higher_order_op import (  # torch/_dynamo/_trace_wrapped_higher_order_op.py
    TransformGetItemToIndex as IndexingByTensors,
)
from torch._dynamo.exc import TensorifyScalarRestartAnalysis as RestartWithConstants  # torch/_dynamo/exc.py
from torch._dynamo.symbolic_convert import TensorifyState  # torch/_dynamo/symbolic_convert.py
from torch._guards import CompileContext, TracingContext  # torch/_guards.py

from compilefarm.torch_internals.fake_tensors import FakeTensorMode

__all__ = [
    "STATIC_MARK",
    "CompileContext",
    "IndexingByTensors",
    "RestartWithConstants",
    "current_compile",
    "expects_static",
    "forget_constant_floats",
    "is_container",
    "is_of_dynamo",
    "is_static_address",
    "is_tracing",
    "make_float_constant",
    "tracing_mode",
]


# Where Dynamo notes that an input stays where it is in memory (torch/_dynamo/decorators.py: mark_static_address).
STATIC_MARK = "_dynamo_static_input_type"


def is_tracing() -> bool:
    """Whether Dynamo is tracing in this thread, or a backend that it called is at work."""
    return TracingContext.try_get() is not None


def tracing_mode() -> FakeTensorMode | None:
    """The mode of the fake tensors that Dynamo is tracing with; None if it is not tracing."""
    context = TracingContext.try_get()
    return None if context is None else context.fake_mode


def current_compile() -> CompileContext | None:
    """What Dynamo is compiling in this thread: one object for all attempts at a frame; None if nothing."""
    return CompileContext.try_get()


def expects_static() -> bool:
    """Whether Dynamo takes sizes and floats for those of all calls until they differ: without dynamic=True."""
    return bool(torch._dynamo.config.assume_static_by_default)  # torch/_dynamo/config.py


def is_of_dynamo(function: Any) -> bool:
    """Whether a function is one of Dynamo's, such as what calls a function of autograd that it leaves in graphs."""
    # torch/_dynamo/variables/misc.py: produce_trampoline_autograd_apply
    return str(function.__module__).startswith("torch._dynamo.")


def is_container(given: object) -> bool:
    """Whether an input of a graph holds several, as the first one of graphs of compiled autograd does."""
    # torch/_inductor/compile_fx.py: compile_fx
    return isinstance(given, list | tuple | dict)


def is_static_address(tensor: torch.Tensor) -> bool:
    """Whether Dynamo was told that a tensor stays where it is in memory."""
    return getattr(tensor, STATIC_MARK, None) is not None


def make_float_constant(symbol: str) -> None:
    """Has Dynamo make a float a constant, by the name of its symbol, when it traces its frame again."""
    TensorifyState.specialize(symbol)


def forget_constant_floats() -> None:
    """Takes back what `make_float_constant` has said."""
    TensorifyState.clear()
