"""Parses large messages in pieces.

protobuf holds Python's lock while it parses. Four megabytes of nothing but empty messages are two million of them, and
take it a quarter of a second, in which the event loop does nothing, whichever thread parses. Here only pieces of some
kilobytes are given to protobuf: what lies between them is told by the lengths on the wire
(https://protobuf.dev/programming-guides/encoding/), and the parts of a message may be merged one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf.message import DecodeError, Message

# At most, unless a single text or number has more: some milliseconds of empty messages.
PIECE_BYTES = 64 * 1024
# Messages within messages. What a request holds goes on within other messages, and protobuf parses 100.
MOST_NESTED = 80
_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10


def merge_in_pieces(message: Message, content: bytes, *, piece_bytes: int = PIECE_BYTES) -> None:
    """Parses a message.

    Args:
        message: an empty one; it has what was parsed afterwards.
        content: its bytes.
        piece_bytes: how many of them protobuf parses at once.

    Raises:
        DecodeError: they are no message, or messages are nested deeper than MOST_NESTED.
    """
    _merge(message, content, 0, len(content), piece_bytes=piece_bytes, depth=0)


def _merge(message: Message, content: bytes, begin: int, end: int, *, piece_bytes: int, depth: int) -> None:
    if depth > MOST_NESTED:
        raise DecodeError(f"messages are nested more than {MOST_NESTED} deep")
    nested = {field.number: field for field in message.DESCRIPTOR.fields if field.message_type is not None}
    # Where what was not parsed yet begins.
    rest = begin
    for number, field_begin, content_begin, field_end in _fields(content, begin, end):
        if field_end - rest <= piece_bytes:
            continue
        message.MergeFromString(content[rest:field_begin])
        rest = field_begin
        if field_end - field_begin > piece_bytes and number in nested:
            part = _part(message, nested[number].name)
            _merge(part, content, content_begin, field_end, piece_bytes=piece_bytes, depth=depth + 1)
            rest = field_end
    message.MergeFromString(content[rest:end])


def _part(message: Message, field: str) -> Message:
    """The message in a field to which more is to be added: a new one in a list, else the one that is there."""
    value = getattr(message, field)
    if not isinstance(value, Message):
        part: Message = value.add()
        return part
    value.SetInParent()
    return value


def _fields(content: bytes, begin: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """The fields on the wire: number, where it begins, where its content begins, and where it ends. The number is 0 for
    fields that can hold no message.
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
