"""What a call may be given: every literal is of the type that its taker's schema says, and text is the rarest.

Encoder and decoder ask the same question, so that what a worker would refuse is compiled by the pod.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from compilefarm.graph import attention, collectives, higher_order, schemas, texts
from compilefarm.graph.misfits import find_contradiction
from compilefarm.graph.operators import find_operator, named_arguments
from compilefarm.torch_internals.operators import OpOverload, schema_of
from compilefarm.v1.graph_pb2 import TargetKind

_OPERATORS = (TargetKind.TARGET_KIND_OPERATOR_OVERLOAD, TargetKind.TARGET_KIND_OPERATOR_PACKET)


def find_objection(
    kind: TargetKind.ValueType, *, name: str, args: Sequence[object], kwargs: Mapping[str, object]
) -> str | None:
    """Why a call may not be given these arguments; None if it may.

    Args:
        kind: the name space of what is called.
        name: the name of what is called; it is known to exist.
        args: positional arguments; results of nodes stand for anything.
        kwargs: keyword arguments.
    """
    for bad in (keyword for keyword in kwargs if not texts.is_name(keyword)):
        # FX writes them into the Python source of the rebuilt graph as they are.
        return f"{bad[:80]!r} is no name of a keyword argument"
    if kind == TargetKind.TARGET_KIND_HIGHER_ORDER_OPERATOR:
        return higher_order.find_misfit(name, args=args, kwargs=kwargs)
    if higher_order.holds_graph((args, kwargs)):
        return "it takes no graph"
    if kind == TargetKind.TARGET_KIND_PYTHON_FUNCTION:
        takes_name = name == "builtins.getattr"
        given = args[:1] if takes_name else (*args, *kwargs.values())
        return "it takes no text and no dictionary" if any(map(texts.holds_text, given)) else None
    objection = (
        collectives.find_objection(name, args=args, kwargs=kwargs)
        or texts.find_objection(kind, name=name, args=args, kwargs=kwargs)
        or find_contradiction(name, args=args, kwargs=kwargs)
    )
    if objection is not None or kind not in _OPERATORS:
        return objection
    # Of attention's operators the one without an overload is taken, also where a graph names all that share the name.
    is_overload = kind == TargetKind.TARGET_KIND_OPERATOR_OVERLOAD or name in attention.OPERATORS
    operator = find_operator(name, is_overload=is_overload)
    misfit = schemas.find_misfit(operator, args=args, kwargs=kwargs)
    if misfit is None and name in attention.OPERATORS and isinstance(operator, OpOverload):
        return attention.find_objection(named_arguments(schema_of(operator), args, kwargs))
    return misfit
