"""Tensors that kernels believe: numbers that say where to read and write, and that torch does not look at.

They have to be the pod's, or the farm's own when it tries a program: inputs of the graph, or made within it by
something that makes right ones. What lies between would be a choice of the request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from typing import Any, Generic, TypeVar

import torch
from torch.fx import GraphModule, Node

from compilefarm.core.compiler_settings import names
from compilefarm.graph.targets import nodes_of
from compilefarm.graph.writes import INPUT, Label, WriteRecorder, find_storage
from compilefarm.torch_internals.pytrees import tensors_in

Known = TypeVar("Known")

# What may be answered otherwise when a graph is compiled: its bodies run with gradients then, and views are made anew.
_ASKING = frozenset(
    names("""
    dim_order is_ is_conj is_contiguous is_inference is_leaf is_neg is_not is_set_to storage_offset stride
    sym_is_contiguous sym_storage_offset sym_stride
""")
)


class BelievedTensors(Generic[Known]):
    """Tensors that kernels may be given, while a graph runs on fake ones.

    Args:
        writes: knows the inputs of the graph, and what is written to.
        meaning: what these tensors are to kernels, in objections.
    """

    def __init__(self, *, writes: WriteRecorder, meaning: str) -> None:
        self._writes = writes
        self._meaning = meaning
        self._known: dict[Label, Known] = {}
        self._used: set[Label] = set()

    @property
    def inputs(self) -> Set[int]:
        """Numbers of the inputs that kernels were given."""
        return {number for kind, number in self._used if kind == INPUT}

    def know_input(self, tensor: torch.Tensor, known: Known, *, number: int) -> None:
        """Takes an input of the graph for what may be believed."""
        self._know(tensor, known, label=(INPUT, number))

    def know_made(self, tensor: torch.Tensor, known: Known) -> None:
        """Takes what the graph has made for what may be believed."""
        self._know(tensor, known, label=(f"believed {self._meaning}", len(self._known)))

    def use(self, tensor: torch.Tensor, *, fits: Callable[[Known], bool]) -> Set[Label]:
        """Whether a kernel may be given a tensor: it is a view of one that is known, and fits what is known of that.

        Returns:
            Which ones it is a view of; none if a kernel may not be given it.
        """
        # The elements of constants are the request's.
        labels = self._writes.labels_of(tensor) & self._known.keys()
        fitting = {label for label in labels if fits(self._known[label])}
        self._used |= fitting
        return fitting

    def find_change(self, graph_module: GraphModule) -> str | None:
        """Why a graph that has run may not be compiled: what kernels believe may be something else then. None if it
        may.
        """
        if self._used and any(map(_asks_otherwise, nodes_of(graph_module))):
            return f"a graph with {self._meaning} asks more of tensors than their sizes"
        written = {label for label in self._used if label[1] in self._writes.written(label[0])}
        return f"the graph writes to {self._meaning}" if written else None

    def _know(self, tensor: torch.Tensor, known: Known, *, label: Label) -> None:
        kind, number = label
        self._writes.know(tensor, kind=kind, number=number)
        self._known[label] = known


def argument_of(node: Node, *, names: Sequence[str], place: int) -> Any:
    """What a call of a captured graph is given for an argument, under one of its names or at its place; None if it is
    given none.
    """
    named = next((node.kwargs[name] for name in names if name in node.kwargs), None)
    return node.args[place] if named is None and 0 <= place < len(node.args) else named


def holders_of(tensor: torch.Tensor, node: Node) -> Iterator[tuple[Node, torch.Tensor]]:
    """Where the memory of a tensor comes from in a captured graph.

    Args:
        tensor: the value of a node.
        node: any of its graph, whose nodes have meta["example_value"].

    Yields:
        Nodes whose values are in that memory, with elements of the same dtype, and these values: first what made it.
    """
    storage = find_storage(tensor)
    for each in node.graph.nodes:
        for value in tensors_in(each.meta.get("example_value")):
            if find_storage(value) is storage and value.dtype == tensor.dtype:
                yield each, value


def _asks_otherwise(node: Node) -> bool:
    """Whether a node asks something of tensors that may be answered otherwise when the graph is compiled."""
    # What a node calls is wrapped in some bodies while they run.
    name = getattr(node.target, "__name__", node.target)
    return "requires_grad" in node.args or str(name).partition(".")[0] in _ASKING
