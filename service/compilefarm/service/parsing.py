"""Parses large messages in pieces.

protobuf holds Python's lock while it parses. Four megabytes of nothing but empty messages are two million of them, and
take it a quarter of a second, in which the event loop does nothing, whichever thread parses. Here only pieces of some
kilobytes are given to protobuf: the parts of a message may be merged one after the other.
"""

from __future__ import annotations

from google.protobuf.message import DecodeError, Message

from compilefarm.core.wire_fields import fields_of

# At most, unless a single text or number has more: some milliseconds of empty messages.
PIECE_BYTES = 64 * 1024
# Messages within messages. What a request holds goes on within other messages, and protobuf parses 100.
MOST_NESTED = 80


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
    for number, field_begin, content_begin, field_end in fields_of(content, begin, end):
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
