"""For tests: random changes of protobuf messages of any type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableSequence, Sequence
from random import Random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

_INTEGERS = (0, 1, 2, 3, 7, 64, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 63) - 1)
_NUMBERS = (0.0, -0.0, 1.0, -1.5, 1e-300, 1e300, float("inf"), float("-inf"), float("nan"))
_TEXTS = ("", "a", "0", "é", "\0", "\n\x1b[2J", "a.b", "__class__", "x" * 300)


class Mutator:
    """Changes messages at random.

    Args:
        random: decides; equal seeds make equal changes.
        texts: what a text field of a name may be set to, beside texts that fit nowhere.
        donors: messages that are merged now and then into a message of the same type.
    """

    def __init__(
        self, random: Random, *, texts: Mapping[str, Sequence[str]] | None = None, donors: Sequence[Message] = ()
    ) -> None:
        self._random = random
        self._texts = texts or {}
        self._donors: dict[str, list[Message]] = {}
        for donor in donors:
            self._donors.setdefault(donor.DESCRIPTOR.full_name, []).append(donor)

    def mutate(self, message: Message) -> None:
        """Changes one thing, somewhere in the message."""
        place = self._random.choice(list(_messages(message)))
        fields: Sequence[Any] = place.DESCRIPTOR.fields
        donors = self._donors.get(place.DESCRIPTOR.full_name)
        if donors and self._random.random() < 0.5:
            place.MergeFrom(self._random.choice(donors))
        elif fields:
            self._change(place, self._random.choice(fields), whole=message)

    def _change(self, message: Message, field: FieldDescriptor, *, whole: Message) -> None:
        value = getattr(message, field.name)
        if isinstance(value, MutableSequence):
            self._change_list(value, field, whole=whole)
        elif field.message_type is None:
            setattr(message, field.name, self._scalar(field))
        elif message.HasField(field.name) and self._random.random() < 0.5:
            message.ClearField(field.name)
        else:
            value.SetInParent()
            value.MergeFrom(self._like(value, whole=whole))

    def _change_list(self, values: Any, field: FieldDescriptor, *, whole: Message) -> None:
        choice = self._random.randrange(4)
        position = self._random.randrange(len(values)) if values else 0
        if choice == 0 and values:
            del values[position]
        elif choice == 1 and values:
            values.insert(self._random.randrange(len(values) + 1), values[position])
        elif field.message_type is None:
            values.append(self._scalar(field))
        elif choice == 2 and values:
            values.add().CopyFrom(self._like(values[position], whole=whole))
        else:
            values.add()

    def _like(self, message: Message, *, whole: Message) -> Message:
        """A message of the same type from elsewhere, or an empty one."""
        found = [other for other in _messages(whole) if other.DESCRIPTOR is message.DESCRIPTOR]
        copy = type(message)()
        if found and self._random.random() < 0.8:
            copy.CopyFrom(self._random.choice(found))
        return copy

    def _scalar(self, field: FieldDescriptor) -> object:
        kind = field.cpp_type
        if kind == FieldDescriptor.CPPTYPE_STRING:
            text = self._random.choice([*_TEXTS, *self._texts.get(field.name, ())])
            return text.encode() if field.type == FieldDescriptor.TYPE_BYTES else text
        if kind == FieldDescriptor.CPPTYPE_BOOL:
            return self._random.random() < 0.5
        if kind in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
            return self._random.choice(_NUMBERS)
        return self._integer(field)

    def _integer(self, field: FieldDescriptor) -> int:
        kind = field.cpp_type
        bits = 64 if kind in (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64) else 32
        if kind in (FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64):
            return self._random.choice(_INTEGERS) % (1 << bits)
        if kind == FieldDescriptor.CPPTYPE_ENUM:
            return self._random.randrange(10)
        return self._random.choice((1, -1)) * (self._random.choice(_INTEGERS) % (1 << bits - 1))


def _messages(message: Message) -> Iterator[Message]:
    """Yields a message and all messages within it."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for below in value if isinstance(value, MutableSequence) else (value,):
                yield from _messages(below)
