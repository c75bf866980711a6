"""Descriptions of operators by what is registered for them in Python, which torch runs while it traces.

What an operator makes of shapes and how it is differentiated is somebody's code, which no guard tells: it is described
with all that it names, and refused where it reads what has no description.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from compilefarm.reuse.called_functions import described_with_all_named
from compilefarm.torch_internals.operators import OpOverload, OpOverloadPacket, name_of_packet
from compilefarm.torch_internals.registrations import (
    fake_implementation,
    functions_run_by_traces,
    torch_dispatch_rules,
)

_Describe = Callable[[Any], str]
# Their registrations are those of the release, or of what is refused as a replacement.
_OF_TORCH = frozenset({"aten", "prim", "prims", "inductor", "_c10d_functional", "quantized"})


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
    seen: set[int] = set()
    parts = [
        each
        for function in _functions_of(name)
        for each in described_with_all_named(function, describe, constant, seen)
    ]
    return f"operator:{operator}:{parts}"


def _functions_of(name: str) -> Iterator[Any]:
    fake = fake_implementation(name)
    yield from () if fake is None else (fake[0],)
    yield from torch_dispatch_rules(name)
    yield from functions_run_by_traces(name)
