"""Arguments of calls: references to nodes, literals and containers of both, as typed data."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from itertools import pairwise
from typing import Any

import torch
from torch.fx import Node
from torch.fx.immutable_collections import immutable_dict, immutable_list

from compilefarm.core.errors import InvalidRequest
from compilefarm.graph.bypass import Bypass
from compilefarm.graph.collectives import GroupName
from compilefarm.graph.devices import DeviceNumbers, decode_device
from compilefarm.graph.dtypes import get_dtype, get_layout, get_memory_format, name_dtype, name_of
from compilefarm.graph.texts import is_name, is_plain
from compilefarm.v1 import graph_pb2
from compilefarm.v1.graph_pb2 import Value

# Three messages for each level of a dictionary must stay below the 100 that protobuf parses.
MAX_DEPTH = 24
# A range is written in three numbers, and whatever takes it writes out all that it counts.
MOST_COUNTED = 100_000
_BIG_INTEGER = re.compile(r"-?[1-9][0-9]{0,999}")
_CUDA_NAME = re.compile(r"cuda(:[0-9]{1,3})?")


class ValueEncoder:
    """Writes the arguments of one graph.

    Args:
        numbers: number of each node that was written already.
        devices: numbers of the CUDA devices; None where no device can be meant, as in an option.
    """

    def __init__(self, *, numbers: Mapping[Node, int], devices: DeviceNumbers | None) -> None:
        self._numbers = numbers
        self._devices = devices
        self._tuples: dict[Node, tuple[object, ...]] = {}
        self._writers: dict[type, Callable[[Any, Value, int], None]] = {
            Node: self._node,
            type(None): lambda _, into, __: into.none.SetInParent(),
            type(...): lambda _, into, __: into.ellipsis.SetInParent(),
            bool: lambda value, into, _: setattr(into, "boolean", value),
            int: _integer,
            float: lambda value, into, _: setattr(into, "real", value),
            complex: _complex,
            str: self._text,
            GroupName: lambda value, into, _: setattr(into, "process_group", value.number),
            list: self._list,
            immutable_list: self._list,
            tuple: self._tuple,
            torch.Size: self._tuple,
            dict: self._dictionary,
            immutable_dict: self._dictionary,
            slice: self._slice,
            range: _range,
            torch.dtype: lambda value, into, _: setattr(into, "dtype", name_dtype(value)),
            torch.layout: lambda value, into, _: setattr(into, "layout", name_of(value)),
            torch.memory_format: lambda value, into, _: setattr(into, "memory_format", name_of(value)),
        }
        if devices is not None:
            self._writers[torch.device] = lambda value, into, _: into.device.CopyFrom(devices.encode(value))

    def note_tuple(self, node: Node, items: tuple[object, ...]) -> None:
        """Says of a node that it makes nothing but a tuple, which is written wherever the node is referred to."""
        self._tuples[node] = items

    def write(self, value: object, *, into: Value, depth: int = 0) -> None:
        """Writes one argument.

        Raises:
            Bypass: the argument has no faithful form; the message names its type.
        """
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            raise Bypass("dynamic_shapes", f"an argument is symbolic ({value}); the farm takes static shapes so far")
        if isinstance(value, Enum) and isinstance(value, int | float | str):
            # What takes a number or text sees no more than that of an IntEnum or StrEnum.
            value = value.value
        writer = self._writers.get(type(value))
        if writer is None:
            kind = type(value)
            raise Bypass(
                "unknown_literal", f"an argument of type {kind.__module__}.{kind.__qualname__} cannot be sent as data"
            )
        if depth > MAX_DEPTH:
            raise Bypass("nesting", f"an argument is nested more than {MAX_DEPTH} levels deep")
        writer(value, into, depth)

    def write_text(self, text: str, *, into: Value) -> None:
        """Writes text that means no device, whatever it reads.

        Raises:
            Bypass: it is too long, or has characters that are not sent.
        """
        into.text = _checked_text(text)

    def _node(self, value: Node, into: Value, depth: int) -> None:
        if value in self._tuples:
            self.write(self._tuples[value], into=into, depth=depth)
        else:
            into.node = self._numbers[value]

    def _text(self, value: str, into: Value, _: int) -> None:
        if self._devices is not None and _CUDA_NAME.fullmatch(value):
            # x.to("cuda:3") means a device of this machine, so it is numbered like any other.
            into.device.CopyFrom(self._devices.encode(torch.device(value)))
            return
        into.text = _checked_text(value)

    def _list(self, value: Sequence[object], into: Value, depth: int) -> None:
        into.list.SetInParent()
        self._items(value, into.list, depth)

    def _tuple(self, value: Sequence[object], into: Value, depth: int) -> None:
        into.tuple.SetInParent()
        self._items(value, into.tuple, depth)

    def _items(self, value: Sequence[object], into: graph_pb2.Sequence, depth: int) -> None:
        for item in value:
            self.write(item, into=into.items.add(), depth=depth + 1)

    def _dictionary(self, value: Mapping[object, object], into: Value, depth: int) -> None:
        into.dictionary.SetInParent()
        if any(type(name) is not str for name in value):
            raise Bypass("unknown_literal", "a dictionary argument has keys that are not text")
        for name in sorted(value):  # type: ignore[type-var]
            entry = into.dictionary.entries.add()
            entry.name = _checked_name(name)
            self.write(value[name], into=entry.value, depth=depth + 1)

    def _slice(self, value: slice, into: Value, depth: int) -> None:
        into.slice.SetInParent()
        for part in ("start", "stop", "step"):
            given = getattr(value, part)
            if given is not None:
                self.write(given, into=getattr(into.slice, part), depth=depth + 1)


def _checked_text(text: str) -> str:
    if not is_plain(text):
        raise Bypass("unknown_literal", f"the text {text[:80]!r} is too long, or has characters that are not sent")
    return text


def _checked_name(name: Any) -> str:
    if not is_name(name):
        raise Bypass("unknown_literal", f"a dictionary has the key {name[:80]!r}, which is no name")
    return str(name)


def _integer(value: int, into: Value, _: int) -> None:
    if -(2**63) <= value < 2**63:
        into.integer = value
    elif value.bit_length() < 3300:
        into.big_integer = str(value)
    else:
        raise Bypass("unknown_literal", "an integer argument has more than 1000 digits")


def _range(value: range, into: Value, _: int) -> None:
    bounds = (value.start, value.stop, value.step)
    if not all(-(2**63) <= bound < 2**63 for bound in bounds):
        raise Bypass("unknown_literal", "a range goes beyond 64 bits")
    if _counts_too_many(value):
        raise Bypass("unknown_literal", f"a range counts more than {MOST_COUNTED} numbers")
    into.range.start, into.range.stop, into.range.step = bounds


def _complex(value: complex, into: Value, _: int) -> None:
    into.complex.real = value.real
    into.complex.imaginary = value.imag
    into.complex.SetInParent()


class ValueDecoder:
    """Reads the arguments of one graph.

    Args:
        nodes: the nodes that were read already; a reference beyond them is refused.
        process_groups: what the groups of the request are called.
    """

    def __init__(self, *, nodes: Sequence[Node], process_groups: Sequence[GroupName] = ()) -> None:
        self._nodes = nodes
        self._process_groups = process_groups
        self._readers: dict[str, Callable[[Any, int], object]] = {
            "node": self._node,
            "none": lambda _, __: None,
            "boolean": lambda value, _: value,
            "integer": lambda value, _: value,
            "real": lambda value, _: value,
            "text": lambda value, _: _read_text(value),
            "complex": lambda value, _: complex(value.real, value.imaginary),
            "list": self._items,
            "tuple": lambda value, depth: tuple(self._items(value, depth)),
            "dictionary": self._dictionary,
            "slice": self._slice,
            "range": lambda value, _: _read_range(value),
            "ellipsis": lambda _, __: ...,
            "dtype": lambda value, _: get_dtype(value),
            "device": lambda value, _: decode_device(value),
            "layout": lambda value, _: get_layout(value),
            "memory_format": lambda value, _: get_memory_format(value),
            "big_integer": lambda value, _: _big_integer(value),
            "process_group": self._process_group,
        }

    def read(self, value: Value, *, depth: int = 0) -> Any:
        """The argument.

        Raises:
            InvalidRequest: it is not set, refers to a node that does not come before, is nested too deeply, or names
                what this torch does not have.
        """
        kind = value.WhichOneof("kind")
        if kind is None:
            raise InvalidRequest("an argument is not set")
        if depth > MAX_DEPTH:
            raise InvalidRequest(f"an argument is nested more than {MAX_DEPTH} levels deep")
        return self._readers[kind](getattr(value, kind), depth)

    def read_named(self, entries: Sequence[graph_pb2.NamedValue], *, depth: int = 0) -> dict[str, Any]:
        """Named arguments; InvalidRequest also when a name occurs twice or they are not sorted."""
        names = [entry.name for entry in entries]
        if any(first >= second for first, second in pairwise(names)):
            raise InvalidRequest("named arguments are not sorted, or one occurs twice")
        return {entry.name: self.read(entry.value, depth=depth) for entry in entries}

    def _node(self, number: int, _: int) -> Node:
        if number >= len(self._nodes):
            raise InvalidRequest(f"an argument refers to node {number}, which does not come before")
        return self._nodes[number]

    def _process_group(self, number: int, _: int) -> GroupName:
        if number >= len(self._process_groups):
            raise InvalidRequest(f"the graph has no process group with number {number}")
        return self._process_groups[number]

    def _items(self, value: graph_pb2.Sequence, depth: int) -> list[object]:
        return [self.read(item, depth=depth + 1) for item in value.items]

    def _dictionary(self, value: graph_pb2.Dictionary, depth: int) -> dict[str, object]:
        if not all(is_name(entry.name) for entry in value.entries):
            raise InvalidRequest("a dictionary has a key that is no name")
        return self.read_named(value.entries, depth=depth + 1)

    def _slice(self, value: graph_pb2.Slice, depth: int) -> slice:
        return slice(
            *(
                self.read(getattr(value, part), depth=depth + 1) if value.HasField(part) else None
                for part in ("start", "stop", "step")
            )
        )


def _counts_too_many(value: range) -> bool:
    # len() cannot say more than 63 bits.
    return bool(value) and abs(value[-1] - value[0]) // abs(value.step) >= MOST_COUNTED


def _read_text(text: str) -> str:
    if not is_plain(text):
        raise InvalidRequest(f"the text {text[:80]!r} is too long, or has characters that no text may have")
    return text


def _read_range(value: graph_pb2.Range) -> range:
    if value.step == 0:
        raise InvalidRequest("a range has the step 0")
    counted = range(value.start, value.stop, value.step)
    if _counts_too_many(counted):
        raise InvalidRequest(f"a range counts more than {MOST_COUNTED} numbers")
    return counted


def _big_integer(text: str) -> int:
    if _BIG_INTEGER.fullmatch(text) is None:
        raise InvalidRequest("a big integer is not written in decimal, or has more than 1000 digits")
    return int(text)
