"""Messages of a farm as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from google.protobuf import json_format
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from compilefarm.core.moments import is_moment

_Message = TypeVar("_Message", bound=Message)


def as_json(message: Message) -> str:
    """Returns a message as JSON, with the names of its fields. Times beyond the calendar, which JSON cannot say, are
    left out: whoever writes the store, or answers in the place of a farm, may have put some there.
    """
    return json_format.MessageToJson(_without_odd_times(message), preserving_proto_field_name=True)


def _without_odd_times(message: _Message) -> _Message:
    copy = type(message)()
    copy.CopyFrom(message)
    for each in _messages_in(copy):
        for field, value in each.ListFields():
            if isinstance(value, Timestamp) and not is_moment(value):
                each.ClearField(field.name)
    return copy


def _messages_in(message: Message) -> Iterator[Message]:
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for below in [value] if isinstance(value, Message) else value:
                yield from _messages_in(below)
