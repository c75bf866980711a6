"""The result of comparing a program of the farm with the uncompiled graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FindingOutcome = Literal["same", "differs", "skipped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a comparison found.

    Attributes:
        outcome: "same"; "differs"; or "skipped", if nothing can be said.
        detail: what differs, or why nothing can be said, for people.
    """

    outcome: FindingOutcome
    detail: str = ""
