"""The fields of a message on the wire, found without parsing what is in them.

protobuf makes an object of each part of a message: two bytes of an empty one become fifty in memory. What lies where is
told by the lengths on the wire (https://protobuf.dev/programming-guides/encoding/).
"""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf.message import DecodeError

_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10


def fields_of(content: bytes, begin: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """The fields on the wire: number, where it begins, where its content begins, and where it ends. The number is 0 for
    fields that can hold no message.

    Raises:
        DecodeError: the bytes are no message, or are cut off.
    """
    position = begin
    while position < end:
        tag, start = _varint(content, position, end)
        kind, number = tag & 7, 0
        if kind == _LENGTH_DELIMITED:
            length, start = _varint(content, start, end)
            after, number = start + length, tag >> 3
        elif kind == _VARINT:
            _, after = _varint(content, start, end)
        elif kind == _FIXED64:
            after = start + 8
        elif kind == _FIXED32:
            after = start + 4
        else:
            # Groups, of which proto3 has none.
            raise DecodeError(f"a field of kind {kind}")
        if after > end:
            raise DecodeError("the message was cut off")
        yield number, position, start, after
        position = after


def _varint(content: bytes, position: int, end: int) -> tuple[int, int]:
    """A number on the wire, and where it ends."""
    if position < end and (byte := content[position]) < 0x80:
        return byte, position + 1
    value = 0
    for shift, byte in enumerate(content[position : min(position + _LONGEST_VARINT, end)]):
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return value, position + shift + 1
    raise DecodeError("a number was cut off")
