"""Messages on a pipe: four bytes of length, little endian, then the message."""

from __future__ import annotations

import asyncio
from typing import BinaryIO, TypeVar

from google.protobuf.message import DecodeError, Message

LENGTH_BYTES = 4
_WIRE_TYPE_LENGTH = 2
# A parsed message takes many times the memory that it takes in a pipe, unless it consists of bytes alone.
LARGEST_STRUCTURE_BYTES = 4 * 1024 * 1024
# protobuf itself takes no more.
LARGEST_MESSAGE_BYTES = 2**31 - 1

_M = TypeVar("_M", bound=Message)


class BrokenPipeOfMessages(Exception):
    """The other end closed the pipe within a message, or sent something else."""


class MessageTooLarge(BrokenPipeOfMessages):
    """The other end announces a message that is larger than allowed."""


def pack_frame(message: Message) -> bytes:
    """Returns the bytes of a message on the pipe."""
    content = message.SerializeToString()
    return len(content).to_bytes(LENGTH_BYTES, "little") + content


def write_frame(pipe: BinaryIO, message: Message) -> None:
    """Writes a message and flushes it."""
    pipe.write(pack_frame(message))
    pipe.flush()


def read_frame(pipe: BinaryIO, kind: type[_M]) -> _M | None:
    """Reads a message; None when the other end has closed the pipe.

    Raises:
        BrokenPipeOfMessages: the pipe ended within a message, or the bytes are none of that kind.
    """
    head = pipe.read(LENGTH_BYTES)
    if not head:
        return None
    length = int.from_bytes(head, "little")
    content = pipe.read(length)
    if len(head) < LENGTH_BYTES or len(content) < length:
        raise BrokenPipeOfMessages("the pipe ended within a message")
    return _parse(content, kind)


async def read_frame_async(
    pipe: asyncio.StreamReader, kind: type[_M], *, largest_bytes: int, bytes_field: int | None = None
) -> _M | None:
    """As `read_frame`, for the end that must not trust the other.

    Args:
        pipe: the pipe.
        kind: the type of the message.
        largest_bytes: the largest message that is accepted.
        bytes_field: number of the field of a message that consists of bytes. A message of more than
            LARGEST_STRUCTURE_BYTES has to hold that one alone.

    Raises:
        BrokenPipeOfMessages: as `read_frame`.
        MessageTooLarge: a message is announced that is larger than allowed.
    """
    try:
        head = await pipe.readexactly(LENGTH_BYTES)
        length = int.from_bytes(head, "little")
        if length > largest_bytes:
            raise MessageTooLarge(f"a message of {length} bytes is more than the {largest_bytes} allowed")
        content = await pipe.readexactly(length)
        if length > LARGEST_STRUCTURE_BYTES and not _is_only(bytes_field, content):
            raise MessageTooLarge(f"a message of {length} bytes is more than the {LARGEST_STRUCTURE_BYTES} allowed")
        return _parse(content, kind)
    except asyncio.IncompleteReadError as error:
        if error.partial or error.expected != LENGTH_BYTES:
            raise BrokenPipeOfMessages("the pipe ended within a message") from error
        return None


def _is_only(field: int | None, content: bytes) -> bool:
    """Whether a message holds one field, with another message in it, from its first byte to its last."""
    if field is None or content[0] != field << 3 | _WIRE_TYPE_LENGTH:
        return False
    length, position = 0, 1
    # Seven bits in each byte, and whether there is one more (https://protobuf.dev/programming-guides/encoding/).
    while content[position] & 0x80 and position < LENGTH_BYTES + 1:
        length |= (content[position] & 0x7F) << 7 * (position - 1)
        position += 1
    length |= content[position] << 7 * (position - 1)
    return length == len(content) - position - 1


def _parse(content: bytes, kind: type[_M]) -> _M:
    try:
        return kind.FromString(content)
    except DecodeError as error:
        raise BrokenPipeOfMessages(f"the pipe holds something else than a {kind.__name__}") from error
