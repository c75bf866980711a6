"""Groups of processes that a graph communicates in, as a request says them."""

from __future__ import annotations

from collections.abc import Sequence

from compilefarm.core.errors import InvalidRequest
from compilefarm.v1.graph_pb2 import ProcessGroup

# A graph has one for each way in which its model is split: tensors, data, experts, pipeline.
MAX_GROUPS = 64
# The largest trainings have some 100,000 GPUs, of which a group takes a part.
MAX_SIZE = 65_536


def check_groups(groups: Sequence[ProcessGroup]) -> None:
    """Checks how many groups there are, and how large they are.

    Raises:
        InvalidRequest: they are too many, or one has no process or too many.
    """
    if len(groups) > MAX_GROUPS:
        raise InvalidRequest(f"the graph names {len(groups)} process groups: at most {MAX_GROUPS} are allowed")
    for number, group in enumerate(groups):
        if not 1 <= group.size <= MAX_SIZE:
            raise InvalidRequest(f"process group {number} has {group.size} processes, not 1 to {MAX_SIZE}")
