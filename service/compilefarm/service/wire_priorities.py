"""Priorities on the wire."""

from __future__ import annotations

from compilefarm.core.errors import InvalidRequest
from compilefarm.service.priorities import Priority
from compilefarm.v1 import compile_service_pb2 as wire

PRIORITIES: dict[Priority, wire.Priority.ValueType] = {
    Priority.INTERACTIVE: wire.PRIORITY_INTERACTIVE,
    Priority.BACKGROUND: wire.PRIORITY_BACKGROUND,
    Priority.PREWARM: wire.PRIORITY_PREWARM,
}
_READ = {number: priority for priority, number in PRIORITIES.items()} | {
    wire.PRIORITY_UNSPECIFIED: Priority.INTERACTIVE
}


def read_priority(number: wire.Priority.ValueType) -> Priority:
    """The priority that a request names.

    Raises:
        InvalidRequest: it is not known here.
    """
    if number not in _READ:
        raise InvalidRequest(f"priority {number} is not known here: the client is newer; upgrade the farm first")
    return _READ[number]
