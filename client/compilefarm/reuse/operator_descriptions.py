"""Descriptions of operators by what is registered for them, which torch runs while it traces.

What an operator makes of shapes and dtypes, and how it is differentiated, is somebody's code, which no guard tells.
Functions that torch still has are described with all that they name, and refused where they read what has no
description. Of the dispatcher's other kernels it is the library's code that is compared.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from compilefarm.graph.bypass import Bypass
from compilefarm.graph.operators import NAMESPACES_OF_TORCH, describe_operators
from compilefarm.graph.registrations import kernels_run_by_traces, registered_functions
from compilefarm.reuse.called_functions import Reached, described_with_all_named
from compilefarm.reuse.refusals import Unsayable
from compilefarm.torch_internals.operators import OpOverload, OpOverloadPacket, name_of_packet, schema_of
from compilefarm.torch_internals.registrations import (
    autocast_dtypes,
    dispatcher_dump,
    fake_implementation,
    functions_run_by_traces,
    is_custom_op,
    kernels_for_python,
    torch_dispatch_rules,
)

_Describe = Callable[[Any], str]
# Their registrations are those of the release, or of what is refused as a replacement.
_OF_TORCH = NAMESPACES_OF_TORCH | {"prim", "inductor"}


def describe_operator(operator: OpOverload | OpOverloadPacket, *, describe: _Describe, constant: _Describe) -> str:
    """Describes an operator.

    Args:
        operator: or all overloads of one.
        describe: describes functions, classes and modules.
        constant: describes what is compared by value; raises Unsayable for anything else.

    Raises:
        Unsayable: what it computes rests on what has no description.
    """
    packet = operator if isinstance(operator, OpOverloadPacket) else operator.overloadpacket
    name = name_of_packet(packet)
    if name.partition("::")[0] in _OF_TORCH:
        return f"operator:{operator}"
    overloads = [getattr(packet, each) for each in packet.overloads()]
    known: Reached = {}
    functions = [
        *_functions_of(name),
        *(each for overload in overloads for each in kernels_for_python(overload).values()),
    ]
    parts = [str(schema_of(each)) for each in overloads]
    parts += [f"{key}={value}" for key, value in autocast_dtypes(name).items()]
    parts += [text for each in functions for text in described_with_all_named(each, describe, constant, known)]
    parts += [_further_kernels(each) for each in overloads]
    return f"operator:{operator}:{parts}"


def _functions_of(name: str) -> Iterator[Any]:
    fake = fake_implementation(name)
    yield from () if fake is None else (fake[0],)
    yield from torch_dispatch_rules(name)
    yield from functions_run_by_traces(name)


def _further_kernels(overload: OpOverload) -> str:
    """Describes the kernels of an overload whose functions are not known, by the code of who registered them.

    Raises:
        Unsayable: that does not tell what they do, or is not known.
    """
    name = overload.name()
    if is_custom_op(name):
        return ""
    known = {*kernels_for_python(overload), *(("Meta",) if fake_implementation(name) is not None else ())}
    further = [each for each in kernels_run_by_traces(name) if each.key not in known]
    if found := next((each for each in further if each.is_python), None):
        # Which one of several functions a state has chosen, their source does not tell.
        raise Unsayable(f"the operator {name}, whose kernel for {found.key} is a Python function that nothing tells")
    return _described_library(name, dispatcher_dump(name), tuple(registered_functions(overload))) if further else ""


@functools.lru_cache(maxsize=1000)
def _described_library(
    name: str,
    registered: str,  # noqa: ARG001 - part of the key
    functions: tuple[Callable[..., Any], ...],  # noqa: ARG001 - as well
) -> str:
    """Describes an operator by the library that registered it, whose files take a while to look through.

    Args:
        name: of the operator.
        registered: what the dispatcher says of it. As long as it says the same, and `functions` are the same, the code
            behind it is the one that was looked at.
        functions: that torch keeps for it.

    Raises:
        Unsayable: it is not known which library that is.
    """
    try:
        return str(describe_operators([name]))
    except Bypass as error:
        raise Unsayable(str(error)) from error
