"""What is looked at when a node is about to run on fake tensors: what other nodes resulted in is held against what is
called as literals are, wherever it comes from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from compilefarm.graph import recurrences, schemas
from compilefarm.graph.misfits import find_contradiction, may_contradict
from compilefarm.graph.targets import find_hazard, is_of_python
from compilefarm.torch_internals.operators import OpOverload, OpOverloadPacket, name_of_packet, schema_of


def find_misfit(target: object, *, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Why a call may not run on these values; None if it may.

    Args:
        target: what is called, or the name of a method.
        args: positional arguments, tensors among them fake; the first is what a method is called on.
        kwargs: named arguments.
    """
    return (
        find_hazard(target, args=args)
        or schemas.find_misfit(target, args=args, kwargs=kwargs)
        or recurrences.find_misfit(target, args=args, kwargs=kwargs)
        or find_contradiction(name_of_called(target), args=args, kwargs=kwargs)
    )


def may_misfit(target: object) -> bool:
    """Whether `find_misfit` may object to values of which literals said nothing. Of what is called by the name of one
    overload they say that no number is a dtype.
    """
    return (
        is_of_python(target)
        or recurrences.is_recurrence(target)
        or isinstance(target, OpOverloadPacket)
        or may_contradict(name_of_called(target))
    )


def name_of_called(target: object) -> str:
    """The name of what a node calls, without its overload."""
    if isinstance(target, OpOverload):
        return str(schema_of(target).name)
    if isinstance(target, OpOverloadPacket):
        return name_of_packet(target)
    return str(getattr(target, "__name__", target))
