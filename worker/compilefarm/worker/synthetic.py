"""Synthetic inputs for graphs, and whether an error is due to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from compilefarm.graph.decode import DecodedJob
from compilefarm.v1.job_pb2 import Job
from compilefarm.worker.believed_values import calls_libraries, refusing_values_outside
from compilefarm.worker.exhaustion import find_exhausted
from compilefarm.worker.fillers import Filler, Kind, find_fillers
from compilefarm.worker.inputs import random_inputs

# How often other inputs are tried where a graph refuses some.
ATTEMPTS = 3
_RIGHT_OFFSETS = frozenset({Kind.OFFSETS})
_RIGHT_REPEATS = frozenset({Kind.OFFSETS, Kind.POSITIVE, Kind.SHARES})


def inputs_of(
    job: Job, decoded: DecodedJob, *, first_seed: int, attempt: int = 0
) -> Callable[[], list[torch.Tensor | int]]:
    """Returns a function that makes synthetic inputs for a graph, the same ones at each call.

    Args:
        job: describes the inputs.
        decoded: the decoded graph: the operators that take an input tell which elements it may have.
        first_seed: seed of the first attempt.
        attempt: which of ATTEMPTS this is. The last one ignores the operators that take an input: integers are zero.
    """
    fillers = _fillers(decoded, hints=job.hints) if attempt < ATTEMPTS - 1 else None
    pivots = decoded.pivot_inputs
    return lambda: random_inputs(job, seed=first_seed + attempt, fillers=fillers, pivots=pivots)


def _fillers(decoded: DecodedJob, *, hints: Sequence[int]) -> Mapping[int, Filler]:
    """What inputs have to have. What kernels believe is what is right for them, or zero: the request decides what else
    takes an input, and so which elements that would give it.
    """
    found = find_fillers(decoded.graph_module)
    return {
        number: _at(filler, decoded, hints=hints)
        for number, filler in found.items()
        if number not in decoded.believed_inputs or filler.kind in _right_for(number, decoded)
    }


def _right_for(number: int, decoded: DecodedJob) -> frozenset[Kind]:
    """Kinds of elements that kernels may believe: small counts are right as repeats, and may be wrong as offsets."""
    return _RIGHT_REPEATS if number in decoded.repeat_inputs else _RIGHT_OFFSETS


def _at(filler: Filler, decoded: DecodedJob, *, hints: Sequence[int]) -> Filler:
    """A filler where sizes are what the hints say: those of the job, or others at which it is tried."""
    if filler.size is None:
        return filler
    number = decoded.symbolic.number_at(filler.size, hints)
    return filler if number is None else replace(filler, bound=number)


def find_refusal(inputs: Callable[[], Sequence[torch.Tensor | int]], decoded: DecodedJob) -> str | None:
    """Why a program may not be run on synthetic inputs before eager was; None if it may, as that of most graphs.

    Operators of libraries may believe values, and what they do then is seen nowhere, or by no process that goes on.

    Args:
        inputs: makes those of the program.
        decoded: the graph.
    """
    if not calls_libraries(decoded.graph_module):
        return None
    try:
        with refusing_values_outside(decoded.graph_module):
            decoded.graph_module(*inputs())
    except Exception as error:  # noqa: BLE001 - whatever it raises, it is eager that raises it
        return str(error) if find_exhausted(error) is None else None
    return None


def are_refused(inputs: Callable[[], Sequence[torch.Tensor | int]], decoded: DecodedJob, *, error: Exception) -> bool:
    """Returns whether an error of a program is due to its synthetic inputs.

    A graph that asserts something of elements, or indexes by what it computes of them, may refuse zeros and ones. Then
    eager refuses them, too.

    Args:
        inputs: makes those of the program.
        decoded: the graph.
        error: the error that the program raised.
    """
    if find_exhausted(error) is not None:
        return False
    if is_gpu_lost(decoded):
        # Eager would fail always.
        return decoded.depends_on_elements
    try:
        decoded.graph_module(*inputs())
    except Exception:  # noqa: BLE001 - whatever it raises, it is eager that raises it
        return True
    return False


def is_gpu_lost(decoded: DecodedJob) -> bool:
    """Returns whether a failed assertion on the GPU of a graph has left this process unable to use it."""
    if not any(isinstance(given, torch.Tensor) and given.device.type == "cuda" for given in decoded.inputs):
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False
