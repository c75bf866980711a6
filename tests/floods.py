"""Messages of nothing but empty parts, for every place of a message where one may be repeated."""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf.descriptor import Descriptor, FieldDescriptor

# Fields one within another, the outermost first.
Path = tuple[FieldDescriptor, ...]


def paths(message: Descriptor, *, within: frozenset[str] = frozenset()) -> Iterator[Path]:
    """Every field of a message that holds messages or is repeated, at any depth; of a message that holds its own kind,
    once.
    """
    within |= {message.full_name}
    for field in message.fields:
        if field.message_type is not None:
            yield (field,)
            if field.message_type.full_name not in within:
                yield from ((field, *path) for path in paths(field.message_type, within=within))
        elif is_repeated(field):
            yield (field,)


def is_repeated(field: FieldDescriptor) -> bool:
    """Whether a field is a list. protobuf has another word for it since 6.30, and since 7 no other."""
    if hasattr(field, "is_repeated"):
        return bool(field.is_repeated)
    return bool(field.label == FieldDescriptor.LABEL_REPEATED)


def name_of(path: Path) -> str:
    """A path as people write it."""
    return ".".join(field.name for field in path)


def flood(path: Path, *, count: int) -> bytes:
    """A message with so many empty parts at a place."""
    *outer, innermost = path
    is_number = innermost.message_type is None and innermost.type != FieldDescriptor.TYPE_STRING
    content = field(innermost.number, b"\0" if is_number else b"") * count
    for each in reversed(outer):
        content = field(each.number, content)
    return content


def field(number: int, content: bytes) -> bytes:
    """A field on the wire, of a kind that has a length."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(number: int) -> bytes:
    """A number on the wire."""
    content = bytearray()
    while number >= 0x80:
        content.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*content, number])
