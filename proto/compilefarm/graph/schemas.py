"""Arguments of operators held against torch's schemas.

Called from Python, torch takes a number for a dtype, a layout or a memory format, since they are numbers within; one
that stands for none of them is looked up all the same (torch/csrc/jit/python/pybind_utils.cpp: toIValue).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import Node

from compilefarm.graph.operators import find_operator, overloads_of
from compilefarm.v1.graph_pb2 import TargetKind

# What is numbers, tensors or both in torch's own terms; a node may be anything until it has run.
_INTEGERS = (int, torch.SymInt, torch.SymBool)
_REALS = (*_INTEGERS, float, torch.SymFloat)
_NUMBERS = (*_REALS, complex)
_TYPES: Mapping[str, tuple[type, ...]] = {
    # Operators take a number for a tensor without dimensions.
    "Tensor": (torch.Tensor, *_NUMBERS),
    "int": _INTEGERS,
    "float": _REALS,
    "number": _NUMBERS,
    "bool": (bool, torch.SymBool),
    "str": (str,),
    "ScalarType": (torch.dtype,),
    "Layout": (torch.layout,),
    "MemoryFormat": (torch.memory_format,),
    "Device": (torch.device, str),
}


def find_misfit(
    kind: TargetKind.ValueType, *, name: str, args: Sequence[object], kwargs: Mapping[str, object]
) -> str | None:
    """Why arguments do not fit the operator; None if they fit, or it is no operator.

    Args:
        kind: the name space of what is called.
        name: the name of what is called; it is known to exist.
        args: positional arguments.
        kwargs: keyword arguments.
    """
    if kind == TargetKind.TARGET_KIND_OPERATOR_OVERLOAD:
        return find_misfit_of(find_operator(name, is_overload=True), args=args, kwargs=kwargs)
    if kind == TargetKind.TARGET_KIND_OPERATOR_PACKET:
        packet = find_operator(name, is_overload=False)
        misfits = [find_misfit_of(overload, args=args, kwargs=kwargs) for overload in overloads_of(packet)]
        return None if None in misfits else f"its arguments fit none of its overloads: {misfits[0]}"
    return None


def find_misfit_of(overload: Any, *, args: Sequence[object], kwargs: Mapping[str, object]) -> str | None:
    """Why arguments do not fit one overload of an operator; None if they do."""
    # torch/_ops.py: OpOverload
    arguments = overload._schema.arguments
    if len(args) > sum(not argument.kwarg_only for argument in arguments):
        return f"{len(args)} positional arguments are too many"
    given = {argument.name: value for argument, value in zip(arguments, args, strict=False)}
    unknown = sorted(kwargs.keys() - {argument.name for argument in arguments} | kwargs.keys() & given.keys())
    if unknown:
        return f"it has no argument {unknown[0][:80]!r}, or has it already"
    given |= kwargs
    for argument in arguments:
        if argument.name in given and not _fits(given[argument.name], str(argument.real_type)):
            return f"{argument.name} is a {argument.real_type}, not {given[argument.name]!r:.80}"
    return None


def _fits(value: object, wanted: str) -> bool:
    """Whether a value is of a type that is written as torch writes it ("Optional[List[int]]")."""
    if isinstance(value, Node):
        return True
    outer, _, inner = wanted.partition("[")
    if outer == "Optional":
        return value is None or _fits(value, inner[:-1])
    if outer == "List":
        # Many take one number for a list of equal ones; torch knows which.
        return _all_fit(value, inner[:-1]) if isinstance(value, list | tuple) else _fits(value, inner[:-1])
    return isinstance(value, _TYPES.get(outer, ()))


def _all_fit(values: Sequence[object], wanted: str) -> bool:
    return all(_fits(value, wanted) for value in values)
