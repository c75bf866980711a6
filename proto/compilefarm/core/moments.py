"""Moments that others have written down."""

from __future__ import annotations

from google.protobuf.timestamp_pb2 import Timestamp


def is_moment(timestamp: Timestamp) -> bool:
    """Returns whether the calendar has it: messages hold any number of seconds, and dates end with the year 9999."""
    try:
        timestamp.ToDatetime()
    except (ValueError, OverflowError):
        return False
    return True
