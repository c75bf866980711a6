"""What torch's trees of CUDA graphs hold in this process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch._inductor import cudagraph_trees


def graphs_on(device: torch.device) -> int:
    """How many graphs are recorded on a GPU, since the last reset."""
    index = torch.cuda.current_device() if device.index is None else device.index
    manager = cudagraph_trees.get_manager(index, create_if_none_exists=False)
    return 0 if manager is None else len([*_nodes(manager.get_roots())])


def _nodes(nodes: Iterable[Any]) -> Iterator[Any]:
    for node in nodes:
        yield node
        for children in node.children.values():
            yield from _nodes(children)
