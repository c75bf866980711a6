"""The decision not to ask the farm."""

from __future__ import annotations


class Bypass(Exception):
    """The farm cannot be asked for this graph: something about it cannot be said faithfully.

    Attributes:
        reason: a short word for machines ("dynamic_shapes", "unknown_target"); metrics count by it. The message is for
            people and names the thing.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
