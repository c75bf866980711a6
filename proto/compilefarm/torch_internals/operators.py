"""Operators of torch: what they are, what they are called, and their schemas."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Mapping
from types import ModuleType

import torch
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket, _OpNamespace, _Ops  # torch/_ops.py

__all__ = [
    "HigherOrderOperator",
    "OpOverload",
    "OpOverloadPacket",
    "assert_when_run",
    "higher_order_operators",
    "holds_operators",
    "name_of_packet",
    "register_further_operators",
    "register_quantized_operators",
    "registered_names",
    "schema_of",
]


def schema_of(overload: OpOverload) -> torch.FunctionSchema:
    """The arguments of an operator, with their types, defaults, and which of them it writes to."""
    return overload._schema


def name_of_packet(packet: OpOverloadPacket) -> str:
    """The name that the overloads of an operator share ("aten::add")."""
    # torch/_ops.py: OpOverloadPacket.__str__ writes it with a dot.
    return str(packet).replace(".", "::", 1)


def holds_operators(module: ModuleType) -> bool:
    """Whether a module is torch.ops or a namespace in it, which find an operator when they are first asked for it."""
    return isinstance(module, (_OpNamespace, _Ops))


def registered_names() -> frozenset[str]:
    """The names of all operators that the dispatcher knows, with their overloads ("aten::add.Tensor")."""
    # torch/csrc/jit/python/init.cpp
    return frozenset(torch._C._dispatch_get_all_op_names())


def register_further_operators() -> None:
    """Registers operators of torch that Dynamo writes for optimizers (prims::fma), unless they are there."""
    importlib.import_module("torch._inductor.inductor_prims")  # torch/_inductor/inductor_prims.py


def register_quantized_operators() -> None:
    """Registers those of quantized models (PT2E), unless they are there. It takes ten milliseconds or more."""
    importlib.import_module("torch.ao.quantization.fx._decomposed")  # torch/ao/quantization/fx/_decomposed.py


def higher_order_operators() -> Mapping[str, HigherOrderOperator]:
    """The operators of torch that call subgraphs, by name."""
    # The package registers its operators when it is imported; torch/_ops.py keeps them by name.
    import torch._higher_order_ops  # noqa: F401
    from torch._ops import _higher_order_ops

    # The one that the package leaves to Dynamo; torch 2.11 has none.
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module("torch._higher_order_ops.register_hook")  # torch/_higher_order_ops/register_hook.py
    operators: Mapping[str, HigherOrderOperator] = _higher_order_ops
    return operators


def assert_when_run(condition: torch.Tensor, message: str) -> None:
    """Has a graph that is being written end with an error where it runs and the tensor is false."""
    # aten/src/ATen/native/native_functions.yaml: _assert_async.msg
    torch._assert_async(condition, message)
