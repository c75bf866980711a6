"""Messages between a service and its process for a bucket: some JSON, and bytes beside it."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from compilefarm.store.backend import LARGEST_IN_MEMORY_BYTES, StoredObject

_LENGTHS = struct.Struct("!II")
# A hundred names of objects have at most a kilobyte each.
LARGEST_VALUES_BYTES = 1024 * 1024

# What is asked to see whether the process does anything.
PING = "ping"

Value = str | int | float | bool | None | list["Value"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A message: what it says, and the content of an object."""

    values: Mapping[str, Value] = field(default_factory=dict)
    content: bytes = b""

    def text(self, name: str) -> str:
        """A value that is a text."""
        value = self.values[name]
        if not isinstance(value, str):
            raise TypeError(f"{name} is no text")
        return value

    def number(self, name: str) -> int:
        """A value that is an integer."""
        value = self.values[name]
        if not isinstance(value, int):
            raise TypeError(f"{name} is no integer")
        return value

    def rows(self) -> list[Value]:
        """The rows of a part of a listing."""
        rows = self.values["rows"]
        if not isinstance(rows, list):
            raise TypeError("rows are no list")
        return rows


async def write_frame(writer: asyncio.StreamWriter, frame: Frame) -> None:
    """Writes a message, and waits while the other end does not take it."""
    values = json.dumps(dict(frame.values)).encode()
    writer.write(_LENGTHS.pack(len(values), len(frame.content)) + values)
    writer.write(frame.content)
    await writer.drain()


async def read_frame(reader: asyncio.StreamReader) -> Frame:
    """Reads a message.

    Raises:
        EOFError: the other end is closed.
        ValueError: it is larger than any message is.
    """
    values_bytes, content_bytes = _LENGTHS.unpack(await reader.readexactly(_LENGTHS.size))
    if values_bytes > LARGEST_VALUES_BYTES or content_bytes > LARGEST_IN_MEMORY_BYTES:
        raise ValueError(f"an answer has {values_bytes + content_bytes} bytes")
    values = json.loads(await reader.readexactly(values_bytes))
    return Frame(values=values, content=await reader.readexactly(content_bytes))


def row_of(stored: StoredObject) -> list[Value]:
    """An object of a listing, as a message says it."""
    return [stored.path, stored.size_bytes, stored.modified_seconds, stored.tag]


def stored_object(row: Value) -> StoredObject:
    """The other way round."""
    match row:
        case [str(path), int(size_bytes), float(modified_seconds), str(tag)]:
            return StoredObject(path=path, size_bytes=size_bytes, modified_seconds=modified_seconds, tag=tag)
        case _:
            raise ValueError("a row of a listing has a path, a size, a time and a tag")
