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
        names = sorted(_names_in(given.__code__))
        called = dict(_called(given, names))
        replaced = next((name for name, value in called.items() if is_foreign(value)), None) or _find_method(names)
        if replaced is not None:
            return replaced
        waiting += [value for value in called.values() if getattr(value, "__module__", None) in _NAMES]
        waiting += _wrapped(given)
    return None


def _called(function: FunctionType, names: Iterable[str]) -> Iterator[tuple[str, object]]:
    for name in names:
        if name in function.__globals__:
            yield f"{function.__module__}.{name}", function.__globals__[name]
        for module in _MODULES:
            if name in vars(module):
                yield f"{module.__name__}.{name}", vars(module)[name]


def _find_method(names: Iterable[str]) -> str | None:
    """The first of these that is a method of tensors, and not torch's own."""
    methods = (name for name in names if not name.startswith("__") and callable(vars(torch.Tensor).get(name)))
    return next((f"torch.Tensor.{name}" for name in methods if not is_own_method(name)), None)


def _names_in(code: CodeType) -> set[str]:
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*map(_names_in, inner))


def _wrapped(function: FunctionType) -> Sequence[object]:
    """Functions that it holds, such as those between which `torch._jit_internal.boolean_dispatch` decides."""
    return [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]


def _is_filled(cell: object) -> bool:
    return hasattr(cell, "cell_contents")
