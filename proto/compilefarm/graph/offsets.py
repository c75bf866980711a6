"""Numbers that say where a kernel reads and writes, and that torch believes.

Of the offsets of bags of embeddings torch looks at the first and the last, and believes those between
(aten/src/ATen/native/EmbeddingBag.cpp: check_arguments). With torch 2.11 it believes the sum of repeats, which wraps
(aten/src/ATen/native/Repeat.cpp). So both are elements of an input of the graph, one after the other, which are the
pod's, and the farm's own when it tries a program; or they count up from zero in equal steps, as
torch.nn.functional.embedding_bag has it for bags of one length. In another order, or with what lies between elements,
they would be a choice of the request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from compilefarm.graph.believed import BelievedTensors, argument_of, holders_of
from compilefarm.graph.misfits import LAST_OFFSET
from compilefarm.graph.operators import base_of, named_arguments
from compilefarm.graph.writes import INPUT, Label, WriteRecorder
from compilefarm.torch_internals.operators import OpOverload, schema_of
from compilefarm.torch_internals.symbolic_shapes import GuardOnDataDependentSymNode

# Names of the arguments that are believed.
_BELIEVED: Mapping[str, str] = {
    "embedding_bag": "offsets",
    "_embedding_bag": "offsets",
    "_embedding_bag_forward_only": "offsets",
    "repeat_interleave": "repeats",
}
_LARGEST = 2**31


class OffsetCheck:
    """Looks at the offsets of every bag, and at repeats, while a graph runs on fake tensors.

    Args:
        writes: knows the inputs of the graph, and what is written to.
    """

    def __init__(self, *, writes: WriteRecorder) -> None:
        self.believed = BelievedTensors[_Run](writes=writes, meaning="offsets of embedding_bag, or repeats")
        self._offsets: set[Label] = set()

    @property
    def repeats(self) -> Set[int]:
        """Numbers of the inputs that kernels take for repeats, and for no offsets."""
        return self.believed.inputs - {number for kind, number in self._offsets if kind == INPUT}

    def know_input(self, tensor: torch.Tensor, *, number: int) -> None:
        """Takes an input of the graph for what may be believed."""
        self.believed.know_input(tensor, _Run.of(tensor), number=number)

    def find_misfit(self, operator: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
        """Why an operator may not run with these arguments; None if it may."""
        name = _BELIEVED.get(base_of(operator.name()))
        if name is None:
            return None
        believed = named_arguments(schema_of(operator), args, kwargs).get(name)
        if not isinstance(believed, torch.Tensor):
            return None if name == "repeats" else _COMPUTED[name]
        used = self.believed.use(believed, fits=lambda known: known.holds(believed))
        if name == "offsets":
            self._offsets |= used
        return None if used else _COMPUTED[name]

    def note(self, operator: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """Remembers what an operator has made, if it counts up from zero."""
        if base_of(operator.name()) == "arange" and _counts_up(named_arguments(schema_of(operator), args, kwargs)):
            self.believed.know_made(result, _Run.of(result))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """Where the elements of a tensor lie in its memory."""

    size: Sequence[Any]
    stride: Sequence[Any]
    offset: Any

    @classmethod
    def of(cls, tensor: torch.Tensor) -> _Run:
        """That of a tensor as it looks now: a graph may have it look otherwise later."""
        return cls(size=tensor.shape, stride=tensor.stride(), offset=tensor.storage_offset())

    def holds(self, part: torch.Tensor) -> bool:
        """Whether the tensor has one dimension, and another of the same memory has some of its elements, one after the
        other, or one of them over and over; with guards on symbols, so that it is so at every call.
        """
        if len(self.size) != 1 or part.dim() != 1:
            return False
        (size,), (stride,), start, step = self.size, self.stride, part.storage_offset(), part.stride(0)
        try:
            if not (stride == 1 or size <= 1) or not (step in (0, 1) or part.shape[0] <= 1):
                return False
            length = part.shape[0] if step == 1 else min(part.shape[0], 1)
            return bool(self.offset <= start and start + length <= self.offset + size)
        except GuardOnDataDependentSymNode:
            return False


_COMPUTED: Mapping[str, str] = {
    name: f"its {name} are computed, and are neither an input of the graph nor count up from zero"
    for name in ("offsets", "repeats")
}


def find_computed(node: Node, name: str) -> str | None:
    """The same objection, of a graph that was captured; None too where nothing is known of the values of nodes.

    Args:
        node: a call, in a graph whose nodes have meta["example_value"].
        name: of what it calls.
    """
    kind = _BELIEVED.get(name.rpartition(".")[2]) or _BELIEVED.get(base_of(name))
    if kind is None:
        return None
    if kind == "offsets" and _ends_with_an_offset(node):
        return LAST_OFFSET
    # Repeats stand behind what is repeated, or alone.
    place = 2 if kind == "offsets" else min(1, len(node.args) - 1)
    believed = argument_of(node, names=(kind,), place=place)
    value = believed.meta.get("example_value") if isinstance(believed, Node) else None
    if not isinstance(value, torch.Tensor):
        return None
    known = (holder for each, holder in holders_of(value, node) if _may_be_believed(each))
    return None if any(_Run.of(each).holds(value) for each in known) else _COMPUTED[kind]


def _ends_with_an_offset(node: Node) -> bool:
    # torch/nn/functional.py has two more arguments before it.
    place = 9 if node.target is torch.nn.functional.embedding_bag else 7
    return bool(argument_of(node, names=("include_last_offset",), place=place))


def _may_be_believed(node: Node) -> bool:
    return node.op == "placeholder" or getattr(node.target, "__name__", "") == "arange"


def _counts_up(given: Mapping[str, Any]) -> bool:
    """Whether torch.arange counts from zero in steps above it, and not beyond what an integer holds."""
    numbers = [_hint(given.get(name, default)) for name, default in (("start", 0), ("end", 0), ("step", 1))]
    if not all(type(number) is int for number in numbers):
        return False
    start, end, step = numbers
    # What it is written into may be part of something else.
    if given.get("out") is not None:
        return False
    return start == 0 and 0 <= end < _LARGEST and step > 0 and given.get("dtype") in (None, torch.int32, torch.int64)


def _hint(number: Any) -> Any:
    return number.node.hint if isinstance(number, torch.SymInt) else number
