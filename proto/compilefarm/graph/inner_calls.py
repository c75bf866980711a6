"""What functions of torch that are written in Python call, as this process has it.

A graph that calls `torch.nn.functional.multi_head_attention_forward` runs whatever `scaled_dot_product_attention` is by
now; libraries put kernels of their own in such places. Dynamo looks into some of these functions, and leaves others in
graphs as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from types import CodeType, FunctionType, ModuleType

import torch

from compilefarm.graph.replacements import is_foreign, is_own_method

# Functions of these files are looked into; what else is called computes nothing, or is a binding.
_MODULES: tuple[ModuleType, ...] = (torch, torch.functional, torch.nn.functional)
_NAMES = frozenset(module.__name__ for module in _MODULES)


def find_replaced_call(functions: Iterable[object]) -> str | None:
    """What functions of torch call, themselves or by way of others, that is not torch's own; None if all is."""
    waiting = list(functions)
    seen: set[int] = set()
    while waiting:
        given = waiting.pop()
        if id(given) in seen or not isinstance(given, FunctionType):
            continue
        seen.add(id(given))
        for name, value in _called(given):
            if is_foreign(value):
                return name
            if getattr(value, "__module__", None) in _NAMES:
                waiting.append(value)
        waiting += _wrapped(given)
    return None


def _called(function: FunctionType) -> Iterator[tuple[str, object]]:
    for name in sorted(_names_in(function.__code__)):
        if name in function.__globals__:
            yield f"{function.__module__}.{name}", function.__globals__[name]
        for module in _MODULES:
            if name in vars(module):
                yield f"{module.__name__}.{name}", vars(module)[name]
        if not name.startswith("__") and callable(vars(torch.Tensor).get(name)) and not is_own_method(name):
            yield f"torch.Tensor.{name}", _Replaced()


class _Replaced:
    """Stands for a method that is not torch's own."""

    def __call__(self) -> None:
        """It is called as methods are."""


def _names_in(code: CodeType) -> set[str]:
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*map(_names_in, inner))


def _wrapped(function: FunctionType) -> Sequence[object]:
    """Functions that it holds, such as those between which `torch._jit_internal.boolean_dispatch` decides."""
    return [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]


def _is_filled(cell: object) -> bool:
    return hasattr(cell, "cell_contents")
