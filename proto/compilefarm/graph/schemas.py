"""Checks arguments of operators against torch's schemas.

Called from Python, torch takes a number for a dtype, a layout or a memory format, since they are numbers within; one
that stands for none of them is looked up all the same (torch/csrc/jit/python/pybind_utils.cpp: toIValue).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch.fx import Node

from compilefarm.graph.attention import may_be_absent
from compilefarm.graph.operators import overloads_of
from compilefarm.torch_internals.operators import OpOverload, OpOverloadPacket, schema_of

# What is numbers, tensors or both in torch's own terms; a node may be anything until it has run.
_INTEGERS = (int, torch.SymInt, torch.SymBool)
_REALS = (*_INTEGERS, float, torch.SymFloat)
_NUMBERS = (*_REALS, complex)
_TYPES: dict[str, tuple[type, ...]] = {
    # Operators take a number for a tensor without dimensions.
    "Tensor": (torch.Tensor, *_NUMBERS),
    "int": _INTEGERS,
    "float": _REALS,
    "number": _NUMBERS,
    "bool": (bool, torch.SymBool),
    "str": (str,),
    # Texts of collectives, in torch 2.15.
    "Any": (str,),
    "ScalarType": (torch.dtype,),
    "Layout": (torch.layout,),
    "MemoryFormat": (torch.memory_format,),
    "Device": (torch.device, str),
}
# The same to torch, which tells these by number.
_TYPES_TO_TORCH = _TYPES | {name: (*_TYPES[name], *_INTEGERS) for name in ("ScalarType", "Layout", "MemoryFormat")}
# What is a number to torch, and of which attribute of a tensor a node may read it.
_ATTRIBUTES = {"ScalarType": "dtype", "Layout": "layout", "MemoryFormat": "memory_format", "Device": "device"}


def find_misfit(target: object, *, args: Sequence[object], kwargs: Mapping[str, object]) -> str | None:
    """Why arguments do not fit an operator; None if they fit, or it is no operator.

    Args:
        target: what is called.
        args: positional arguments.
        kwargs: keyword arguments.
    """
    if isinstance(target, OpOverload):
        return _find_misfit(target, args=args, kwargs=kwargs)
    if isinstance(target, OpOverloadPacket):
        return _find_misfit_of_all(overloads_of(target), args=args, kwargs=kwargs)
    return None


def _find_misfit_of_all(
    overloads: Sequence[OpOverload], *, args: Sequence[object], kwargs: Mapping[str, object]
) -> str | None:
    misfits = [_find_misfit(overload, args=args, kwargs=kwargs) for overload in overloads]
    if None not in misfits:
        return f"its arguments fit none of its overloads: {misfits[0] if misfits else ''}"
    for overload, misfit in zip(overloads, misfits, strict=True):
        # Torch takes the first that fits in its own terms, whichever is meant.
        if misfit is not None and _find_misfit(overload, args=args, kwargs=kwargs, types=_TYPES_TO_TORCH) is None:
            return f"torch may take {overload.name()}, whose {misfit}"
    return None


def _find_misfit(
    overload: OpOverload,
    *,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    types: Mapping[str, tuple[type, ...]] = _TYPES,
) -> str | None:
    """Why arguments do not fit one overload of an operator; None if they do."""
    arguments = schema_of(overload).arguments
    if len(args) > sum(not argument.kwarg_only for argument in arguments):
        return f"{len(args)} positional arguments are too many"
    given = {argument.name: value for argument, value in zip(arguments, args, strict=False)}
    unknown = sorted(kwargs.keys() - {argument.name for argument in arguments} | kwargs.keys() & given.keys())
    if unknown:
        return f"it has no argument {unknown[0][:80]!r}, or has it already"
    given |= kwargs
    for argument in arguments:
        if given.get(argument.name) is None and may_be_absent(overload.name(), argument=argument.name):
            continue
        if argument.name in given and not _fits(given[argument.name], str(argument.real_type), types=types):
            return f"{argument.name} is a {argument.real_type}, not {given[argument.name]!r:.80}"
    return None


def _fits(value: object, wanted: str, *, types: Mapping[str, tuple[type, ...]]) -> bool:
    """Whether a value is of a type that is written as torch writes it ("Optional[List[int]]")."""
    outer, _, inner = wanted.partition("[")
    if outer == "Optional":
        return value is None or _fits(value, inner[:-1], types=types)
    if outer == "List":
        # Many take one number for a list of equal ones; torch knows which.
        values = value if isinstance(value, list | tuple) else [value]
        return all(_fits(each, inner[:-1], types=types) for each in values)
    if isinstance(value, Node):
        return _may_be(value, outer)
    return isinstance(value, types.get(outer, ()))


def _may_be(node: Node, wanted: str) -> bool:
    """Whether a node may result in what is of a type; it may be anything, but no number in the place of these."""
    attribute = _ATTRIBUTES.get(wanted)
    return attribute is None or (node.target is getattr and node.args[1:] == (attribute,))
