"""Inputs that nobody sent, and graphs that do not take them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from compilefarm.graph.decode import DecodedJob
from compilefarm.graph.fillers import find_fillers
from compilefarm.graph.inputs import random_inputs
from compilefarm.v1.job_pb2 import Job
from compilefarm.worker.exhaustion import find_exhausted

# How often other inputs are tried where a graph refuses some.
ATTEMPTS = 3


def inputs_of(
    job: Job, decoded: DecodedJob, *, first_seed: int, attempt: int = 0
) -> Callable[[], list[torch.Tensor | int]]:
    """Makes inputs for a graph, the same ones whenever it is called.

    Args:
        job: says what they look like.
        decoded: the same, decoded: what consumes an input says what elements it may have.
        first_seed: of the elements of the first attempt.
        attempt: which of ATTEMPTS this is. The last one makes nothing of consumers: integers are zero.
    """
    fillers = find_fillers(decoded.graph_module) if attempt < ATTEMPTS - 1 else None
    return lambda: random_inputs(job, seed=first_seed + attempt, fillers=fillers)


def are_refused(inputs: Sequence[torch.Tensor | int], decoded: DecodedJob, *, error: Exception) -> bool:
    """Whether synthetic inputs are to blame for an error of the program that had them.

    A graph that asserts something of elements, or indexes by what it computes of them, may refuse zeros and ones. Then
    eager refuses them, too.

    Args:
        inputs: made as those were that the program had.
        decoded: the graph.
        error: what the program raised.
    """
    if find_exhausted(error) is not None:
        return False
    if any(isinstance(given, torch.Tensor) and given.is_cuda for given in inputs) and _is_gpu_lost():
        # Eager would fail always.
        return decoded.depends_on_elements
    try:
        decoded.graph_module(*inputs)
    except Exception:  # noqa: BLE001 - whatever it raises, it is eager that raises it
        return True
    return False


def _is_gpu_lost() -> bool:
    """Whether an assertion on a GPU has left a process that can compute nothing there any more."""
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False
