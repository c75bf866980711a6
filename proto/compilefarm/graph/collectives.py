"""Collectives: operators by which the processes of a group exchange tensors.

A request says how many processes a group has, and neither its name nor the rank of whoever asks: all ranks share one
program. The worker calls a group by its number in the request; a pod puts the name of its own group there when it loads
the program.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch.fx import GraphModule, Node

from compilefarm.core.errors import InvalidRequest
from compilefarm.core.process_groups import check_groups
from compilefarm.graph.bypass import Bypass
from compilefarm.torch_internals.operators import OpOverload, OpOverloadPacket, name_of_packet
from compilefarm.torch_internals.process_groups import size_of_group
from compilefarm.v1.graph_pb2 import ProcessGroup

NAMESPACES = frozenset({"_c10d_functional", "_c10d_functional_autograd"})
# Where each takes its group, among positional arguments (torch/csrc/distributed/c10d/Functional.cpp); by the name of
# the parameter it is the same for all.
_PLACES: Mapping[str, int] = {
    "all_gather_into_tensor": 2,
    "all_gather_into_tensor_coalesced": 2,
    "all_reduce": 2,
    "all_reduce_coalesced": 2,
    "all_to_all_single": 3,
    "broadcast": 2,
    "reduce_scatter_tensor": 3,
    "reduce_scatter_tensor_coalesced": 3,
}
_WAITS = frozenset({"wait_tensor", "wait_tensors"})
OPERATORS = frozenset(_PLACES) | _WAITS
PARAMETER = "group_name"
_NAME = re.compile(r"compilefarm_group_([0-9]{1,2})_of_([0-9]{1,5})")

Arguments = Mapping[str, Any]


class GroupName(str):
    """What a group of a request is called on the worker and in a program of the farm.

    Attributes:
        number: of the group in the request.
        size: how many processes it has.
    """

    __slots__ = ("number", "size")
    number: int
    size: int

    @classmethod
    def of(cls, number: int, *, size: int) -> GroupName:
        """The name of a group."""
        name = cls(f"compilefarm_group_{number}_of_{size}")
        name.number, name.size = number, size
        return name


@dataclass(slots=True)
class ProcessGroups:
    """The groups that a graph names while it is encoded.

    Attributes:
        names: what each is called in this process.
        described: the same groups, as the request says them.
    """

    names: list[str] = field(default_factory=list)
    described: list[ProcessGroup] = field(default_factory=list)

    def take(
        self, name: str, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> tuple[Sequence[object], Mapping[str, object]]:
        """The arguments of a call, with the number of a group in the place of its name.

        Raises:
            Bypass: the group is none of this process, or is named otherwise than by a text.
        """
        place = find_place(name)
        if place is None:
            return args, kwargs
        if place < len(args):
            return (*args[:place], self._number(args[place]), *args[place + 1 :]), kwargs
        return args, {**kwargs, PARAMETER: self._number(kwargs.get(PARAMETER))}

    def _number(self, name: object) -> GroupName:
        if not isinstance(name, str):
            raise Bypass("process_group", f"a collective names its process group by a {type(name).__name__}")
        if name not in self.names:
            self._note(name)
        number = self.names.index(name)
        return GroupName.of(number, size=self.described[number].size)

    def _note(self, name: str) -> None:
        try:
            size = size_of_group(name)
            check_groups([*self.described, ProcessGroup(size=size)])
        except (RuntimeError, InvalidRequest) as error:
            raise Bypass("process_group", f"the process group of a collective cannot be said: {error}") from error
        self.names.append(name)
        self.described.append(ProcessGroup(size=size))


def decode_groups(groups: Sequence[ProcessGroup]) -> list[GroupName]:
    """What the groups of a request are called on a worker.

    Raises:
        InvalidRequest: they are too many or too large.
    """
    check_groups(groups)
    return [GroupName.of(number, size=group.size) for number, group in enumerate(groups)]


def as_plain_text(args: Sequence[object], kwargs: Mapping[str, object]) -> tuple[tuple[object, ...], dict[str, object]]:
    """The arguments of a call as torch takes them: names of groups are texts like any other."""
    return tuple(map(_plain, args)), {name: _plain(value) for name, value in kwargs.items()}


def _plain(value: object) -> object:
    return str.__str__(value) if isinstance(value, GroupName) else value


def is_collective(name: str) -> bool:
    """Whether an operator is one of torch's for collectives, by its name ("_c10d_functional::all_reduce")."""
    return name.partition("::")[0] in NAMESPACES


def calls_collectives(graph_module: GraphModule) -> bool:
    """Whether a graph, or one within it, communicates with other processes."""
    modules = (module for module in graph_module.modules() if isinstance(module, GraphModule))
    return any(_is_call(node) for module in modules for node in module.graph.nodes)


def _is_call(node: Node) -> bool:
    return node.op == "call_function" and is_collective(_name_of(node.target))


def _name_of(target: object) -> str:
    if isinstance(target, OpOverload):
        return str(target.name())
    return name_of_packet(target) if isinstance(target, OpOverloadPacket) else ""


def find_place(name: str) -> int | None:
    """Where a collective takes its group, as position; None if what is called takes none."""
    namespace, _, rest = name.partition("::")
    return _PLACES.get(rest.partition(".")[0]) if namespace in NAMESPACES else None


def find_objection(name: str, *, args: Sequence[object], kwargs: Mapping[str, object]) -> str | None:
    """Why a collective may not be called with these arguments in a graph; None if it may, or takes no group."""
    place = find_place(name)
    if place is None:
        return None
    group = args[place] if place < len(args) else kwargs.get(PARAMETER)
    if not isinstance(group, GroupName):
        return "its process group is given otherwise than by its number in the request"
    return None


def find_check(name: str) -> Callable[[Arguments], str | None] | None:
    """What holds the arguments of a collective against its group before it runs; None if there is nothing to hold.

    Args:
        name: of the operator, without namespace and overload.
    """
    return _CHECKS.get(name)


def _size_of(given: Arguments) -> int:
    found = _NAME.fullmatch(given[PARAMETER])
    # While a request is decoded no group has another name.
    return int(found[2]) if found else 0


def _tensors(given: Arguments) -> Iterable[Any]:
    return given["inputs"] if "inputs" in given else [given["input"]]


def _stated_size(given: Arguments) -> str | None:
    size = _size_of(given)
    return None if given["group_size"] == size else f"its group has {size} processes, not {given['group_size']}"


def _parts_of_a_reduction(given: Arguments) -> str | None:
    size = _size_of(given)
    is_even = all(tensor.dim() > 0 and tensor.shape[0] % size == 0 for tensor in _tensors(given))
    return _stated_size(given) or (None if is_even else f"it divides what is no multiple of {size} rows")


def _parts_of_an_exchange(given: Arguments) -> str | None:
    size, sent, received = _size_of(given), given["input_split_sizes"], given["output_split_sizes"]
    if len(sent) != size or len(received) != size or any(part < 0 for part in (*sent, *received)):
        return f"its parts are not those of {size} processes"
    rows = given["input"].shape[0] if given["input"].dim() else -1
    return None if sum(sent) == rows else "its parts are not all of its rows"


def _source(given: Arguments) -> str | None:
    size = _size_of(given)
    return None if 0 <= given["src"] < size else f"its group has {size} processes, and none of rank {given['src']}"


_CHECKS: Mapping[str, Callable[[Arguments], str | None]] = {
    "all_gather_into_tensor": _stated_size,
    "all_gather_into_tensor_coalesced": _stated_size,
    "all_to_all_single": _parts_of_an_exchange,
    "broadcast": _source,
    "reduce_scatter_tensor": _parts_of_a_reduction,
    "reduce_scatter_tensor_coalesced": _parts_of_a_reduction,
}
