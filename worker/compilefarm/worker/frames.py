"""Messages on a pipe: four bytes of length, little endian, then the message."""

from __future__ import annotations

import asyncio
from typing import BinaryIO, TypeVar

from google.protobuf.message import DecodeError, Message

LENGTH_BYTES = 4
# A piece of a blob (worker/pieces.py), or a description of an artifact. A parsed message takes many times the memory
# that it takes in a pipe, and everybody waits until it is parsed: 0.4 s for 4 MiB of the smallest.
LARGEST_MESSAGE_BYTES = 1024 * 1024 + 64 * 1024

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


async def read_frame_async(pipe: asyncio.StreamReader, kind: type[_M], *, largest_bytes: int) -> _M | None:
    """As `read_frame`, for the end that must not trust the other.

    Args:
        pipe: where it comes.
        kind: what it is.
        largest_bytes: how large it may be, if that is less than LARGEST_MESSAGE_BYTES.

    Raises:
        BrokenPipeOfMessages: as there.
        MessageTooLarge: a message is announced that is larger than allowed.
    """
    most_bytes = min(largest_bytes, LARGEST_MESSAGE_BYTES)
    try:
        head = await pipe.readexactly(LENGTH_BYTES)
        length = int.from_bytes(head, "little")
        if length > most_bytes:
            raise MessageTooLarge(f"a message of {length} bytes is more than the {most_bytes} allowed")
        message = _parse(await pipe.readexactly(length), kind)
    except asyncio.IncompleteReadError as error:
        if error.partial or error.expected != LENGTH_BYTES:
            raise BrokenPipeOfMessages("the pipe ended within a message") from error
        return None
    # Fields that a later one takes the place of count by what they took: they take time and memory as others do.
    if message.ByteSize() != length:
        raise BrokenPipeOfMessages(f"the pipe holds a {kind.__name__} of {length} bytes that says less")
    return message


def _parse(content: bytes, kind: type[_M]) -> _M:
    try:
        return kind.FromString(content)
    except DecodeError as error:
        raise BrokenPipeOfMessages(f"the pipe holds something else than a {kind.__name__}") from error
