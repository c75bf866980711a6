"""Inputs that share memory, where a graph writes to it: AOTAutograd makes one input of those that overlap, of which the
graph takes parts by their places in memory (torch/_functorch/_aot_autograd/runtime_wrappers.py: merge_view_inputs).

Torch guards neither that they do, nor where each begins: in another place its program writes to what it was not given.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch.fx import GraphModule

from compilefarm.graph.bypass import Bypass
from compilefarm.graph.symbols import find_hint
from compilefarm.graph.tensors import reached_elements
from compilefarm.graph.writes import find_storage
from compilefarm.torch_internals.autograd import find_base


def share_memory(values: Sequence[object]) -> bool:
    """Whether two tensors do, whether they overlap or not."""
    return next(_groups(values), None) is not None


def overlap(values: Sequence[object]) -> bool:
    """Whether some tensor reaches into the place of another one."""
    return bool(_overlaps(values))


def fix_sizes(graph_module: GraphModule) -> None:
    """Has Dynamo guard the sizes with which it traces a graph: another size is traced again.

    AOTAutograd says where parts of an input that overlap begin and end by numbers, as they are at the moment.

    Raises:
        Bypass: one is not known.
    """
    for node in graph_module.graph.find_nodes(op="placeholder"):
        for number in _numbers_of(node.meta.get("example_value")):
            if isinstance(number, torch.SymInt):
                if find_hint(number) is None:
                    raise Bypass("aliased_inputs", "inputs overlap, and the size of one is not known")
                int(number)


def _numbers_of(value: object) -> Sequence[object]:
    return (*value.shape, *value.stride(), value.storage_offset()) if isinstance(value, torch.Tensor) else (value,)


def with_places_checked(
    program: Callable[..., Any], inputs: Sequence[Any], *, held: Sequence[torch.Tensor], uncompiled: Callable[..., Any]
) -> Callable[..., Any]:
    """Returns a program that is right for tensors that overlap in another way, too.

    Args:
        program: is right for tensors that overlap as these do.
        inputs: of the graph.
        held: tensors that the graph holds.
        uncompiled: the graph, for calls with tensors that overlap in another way.
    """
    expected = _overlaps((*inputs, *held))

    def run(*given: Any) -> Any:
        return (program if _overlaps((*given, *held)) == expected else uncompiled)(*given)

    return run


def extent_of(tensor: torch.Tensor) -> tuple[int, int]:
    """The first byte of a strided tensor in its memory, and the one behind its last."""
    begin = tensor.storage_offset()
    end = begin + (reached_elements(tensor.shape, tensor.stride()) if tensor.numel() else 0)
    return begin * tensor.element_size(), end * tensor.element_size()


def _overlaps(values: Sequence[Any]) -> Sequence[Hashable]:
    """Of each memory where some tensor reaches into the place of another one: which tensors are there, and where."""
    return [
        tuple((number, *_place(values[number])) for number in group)
        for group in _groups(values)
        if _reach_into_another([extent_of(values[number]) for number in group])
    ]


def _groups(values: Sequence[object]) -> Iterator[Sequence[int]]:
    """Numbers of tensors that share a memory, for each that several have."""
    groups = defaultdict(list)
    # torch keeps one Python object for a storage as long as somebody holds it.
    storages = [find_storage(value) if isinstance(value, torch.Tensor) else None for value in values]
    for number, storage in enumerate(storages):
        if storage is not None:
            groups[id(storage)].append(number)
    return (group for group in groups.values() if len(group) > 1)


def _reach_into_another(extents: Sequence[tuple[int, int]]) -> bool:
    ordered = sorted(extents)
    return any(end > begin for (_, end), (begin, _) in pairwise(ordered))


def _place(tensor: torch.Tensor) -> Sequence[Hashable]:
    """Where a tensor begins, how large its memory is, and what it is a view of; Dynamo guards its sizes."""
    base = find_base(tensor)
    whole = () if base is None else (base.dtype, base.shape, base.stride(), base.storage_offset())
    return tensor.storage_offset(), tensor.untyped_storage().nbytes(), whole
