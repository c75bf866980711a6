"""Fields of data classes, of which Python has no public name for one thing that decides what a trace finds."""

from __future__ import annotations

import dataclasses
from typing import Any


def kind_of_field(field: dataclasses.Field[Any]) -> str:
    """Returns which kind a field is of: one of instances, of the class alone, or an argument alone. Of the first
    `dataclasses.fields` tells.
    """
    kind: Any = field._field_type  # type: ignore[attr-defined]  # Lib/dataclasses.py
    return str(kind)
