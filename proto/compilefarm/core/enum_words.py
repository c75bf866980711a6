"""Values of enumerations of the wire as words."""

from __future__ import annotations

from typing import Any


def word_of(enumeration: Any, number: int, *, prefix: str) -> str:
    """Returns a value as a word ("compile_error"); one that only a newer release knows, by its number
    ("failure_kind_99").

    Args:
        enumeration: as protobuf generates it, such as FailureKind.
        number: the value.
        prefix: of its names ("FAILURE_KIND_").
    """
    if number not in enumeration.values():
        return f"{prefix}{number}".lower()
    return str(enumeration.Name(number)).removeprefix(prefix).lower()
