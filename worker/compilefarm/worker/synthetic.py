"""Inputs that nobody sent, and graphs that do not take them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from compilefarm.graph.decode import DecodedJob
from compilefarm.worker.exhaustion import find_exhausted


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
    if any(isinstance(given, torch.Tensor) and given.is_cuda for given in inputs):
        # An assertion on a GPU leaves a process that can compute nothing any more, in which eager fails always.
        return decoded.depends_on_elements
    try:
        decoded.graph_module(*inputs)
    except Exception:  # noqa: BLE001 - whatever it raises, it is eager that raises it
        return True
    return False
