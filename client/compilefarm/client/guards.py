"""Evaluates the guards of an artifact at every call, for programs that come too late for Dynamo to do that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from compilefarm.client.programs import Program
from compilefarm.core.errors import IncompatibleArtifact
from compilefarm.core.expressions import holds
from compilefarm.v1.graph_pb2 import Expression, Input
from compilefarm.v1.job_pb2 import Job


def guarded(guards: Sequence[Expression], *, job: Job, program: Program, otherwise: Program) -> Program:
    """Returns a program that is used for calls whose sizes its guards allow.

    Args:
        guards: of the artifact; they have been validated.
        job: the artifact's.
        program: of the artifact; takes the inputs of the job.
        otherwise: is used for all other calls.

    Raises:
        IncompatibleArtifact: the inputs do not say each symbol of the job.
    """
    if not guards:
        return program
    places = [_find_place(job.inputs, symbol) for symbol in range(len(job.symbols))]

    def run(*inputs: Any) -> Any:
        values = [_numbers_of(inputs[number])[position] for number, position in places]
        return program(*inputs) if holds(guards, values) else otherwise(*inputs)

    return run


def _find_place(inputs: Sequence[Input], symbol: int) -> tuple[int, int]:
    """Number of an input that says a symbol, and which of its numbers is the symbol."""
    for number, given in enumerate(inputs):
        for position, said in enumerate(_numbers_said(given)):
            if said.WhichOneof("value") == "symbol" and said.symbol == symbol:
                return number, position
    raise IncompatibleArtifact(f"the artifact has guards, and no input of the graph is its symbol s{symbol}")


def _numbers_said(given: Input) -> Sequence[Expression]:
    if given.HasField("integer"):
        return [given.integer]
    tensor = given.tensor
    return [each.expression for each in (*tensor.shape, *tensor.stride, tensor.storage_offset)]


def _numbers_of(value: Any) -> Sequence[int]:
    """The same numbers of what is passed for the input."""
    return [value] if isinstance(value, int) else [*value.shape, *value.stride(), value.storage_offset()]
