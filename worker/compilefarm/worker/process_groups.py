"""Stands in for groups of processes on a worker, where one process makes and checks programs with collectives.

The other processes of a group hold what this one holds, so that a reduction is that of equal tensors; what is gathered
from them comes turned around, so that it matters from whom each part is. Eager and the program meet the same group.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from compilefarm.graph.collectives import decode_groups
from compilefarm.torch_internals.process_groups import (
    finished_work,
    is_asked_for_notes,
    process_group_type,
    register_collectives,
    registered_group,
)
from compilefarm.v1.graph_pb2 import Graph

# What was called: its kind, how large its group is, by what it reduces or from whom it comes, and shapes and dtypes.
Call = tuple[object, ...]
_recorded: list[list[Call]] = []


class RankAsked(Exception):
    """A compile asked which process of a group it is for; its program would be right for that one alone."""


@contextmanager
def standing_in(graph: Graph) -> Iterator[None]:
    """Inside, the groups of a request can be communicated in."""
    names = decode_groups(graph.process_groups)
    if names:
        register_collectives()
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(registered_group(name, make_group(name.size)))
        yield


@contextmanager
def recording_calls() -> Iterator[list[Call]]:
    """Yields a list of the collectives that are called inside, in their order."""
    calls: list[Call] = []
    _recorded.append(calls)
    try:
        yield calls
    finally:
        _recorded.remove(calls)


def make_group(size: int) -> Any:
    """A group of processes of which this is the first, and the only one that there is."""
    return _group_type()(size)


def _note(group: Any, kind: str, tensors: Sequence[torch.Tensor], *, detail: object = None) -> None:
    for calls in _recorded:
        calls.append((kind, id(group), group.size(), detail, *((tuple(each.shape), each.dtype) for each in tensors)))


@functools.cache
def _group_type() -> Callable[[int], Any]:
    """Made when there is need: torch has groups in some of its builds only."""

    class Group(process_group_type()):  # type: ignore[misc]  # torch has it in some builds only
        def __init__(self, size: int) -> None:
            super().__init__(0, size)

        def rank(self) -> int:
            if is_asked_for_notes():
                return 0
            raise RankAsked("the compile depends on the rank of the process that asks; ranks cannot share its program")

        def getBackendName(self) -> str:
            return "compilefarm"

        def allreduce(self, tensors: Sequence[torch.Tensor], options: Any) -> Any:
            return self._reduce(tensors, tensors, options)

        def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], options: Any) -> Any:
            return self._reduce(tensors, tensors, options)

        def reduce_scatter_tensor_coalesced(
            self, results: Sequence[torch.Tensor], given: Sequence[torch.Tensor], options: Any
        ) -> Any:
            return self._reduce(results, [whole.chunk(self.size())[0] for whole in given], options)

        def _reduce(self, results: Sequence[torch.Tensor], given: Sequence[torch.Tensor], options: Any) -> Any:
            _note(self, "reduce", (*results, *given), detail=_name_of(options.reduceOp))
            for result, tensor in zip(results, given, strict=True):
                _write(result, reduced(tensor, size=self.size(), by=_name_of(options.reduceOp)))
            return finished_work(list(results))

        def allgather_into_tensor_coalesced(
            self, results: Sequence[torch.Tensor], given: Sequence[torch.Tensor], _options: Any = None
        ) -> Any:
            _note(self, "gather", given)
            for result, tensor in zip(results, given, strict=True):
                _write(result, torch.cat([_of_rank(rank, tensor) for rank in range(self.size())]))
            return finished_work(list(results))

        def alltoall_base(
            self,
            result: torch.Tensor,
            given: torch.Tensor,
            output_sizes: Sequence[int],
            input_sizes: Sequence[int],
            _options: Any = None,
        ) -> Any:
            _note(self, "exchange", [given], detail=(*output_sizes, *input_sizes))
            own = given[: input_sizes[0]]
            parts = [_of_rank(rank, _of_length(own, size)) for rank, size in enumerate(output_sizes)]
            _write(result, torch.cat(parts) if parts else result)
            return finished_work([result])

        def broadcast(self, tensors: Sequence[torch.Tensor], options: Any) -> Any:
            _note(self, "broadcast", tensors, detail=options.rootRank)
            for tensor in tensors:
                _write(tensor, _of_rank(options.rootRank, tensor))
            return finished_work(list(tensors))

    return Group


def reduced(tensor: torch.Tensor, *, size: int, by: str) -> torch.Tensor:
    """What a number of equal tensors are together.

    Args:
        tensor: one of them.
        size: how many there are.
        by: torch's name of the reduction ("SUM").
    """
    return _REDUCTIONS[by](tensor, size)


_REDUCTIONS: Mapping[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "SUM": lambda tensor, size: tensor * size,
    "PRODUCT": lambda tensor, size: tensor**size,
    "BXOR": lambda tensor, size: tensor if size % 2 else torch.zeros_like(tensor),
    **dict.fromkeys(("AVG", "MIN", "MAX", "BAND", "BOR"), lambda tensor, _: tensor),
}


def _name_of(reduction: Any) -> str:
    # torch/csrc/distributed/c10d/Types.hpp: ReduceOp has the kind, and what belongs to it.
    return str(getattr(reduction, "op", reduction)).rpartition(".")[2]


def _of_rank(rank: int, tensor: torch.Tensor) -> torch.Tensor:
    return tensor.roll(rank) if tensor.numel() else tensor


def _of_length(tensor: torch.Tensor, length: int) -> torch.Tensor:
    """Its rows, again and again."""
    if tensor.shape[0] == 0:
        return tensor.new_zeros((length, *tensor.shape[1:]))
    return tensor[torch.arange(length, device=tensor.device) % tensor.shape[0]]


def _write(into: torch.Tensor, value: torch.Tensor) -> None:
    # Collectives write to what schemas call their arguments: autograd is not to know.
    with torch.no_grad():
        into.detach().copy_(value.reshape(into.shape))
