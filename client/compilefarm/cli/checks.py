"""What `compilefarm doctor` finds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at.

    Attributes:
        name: what it is.
        state: how bad it is.
        finding: what was found.
        remedy: what to do about it; empty if nothing has to be done.
    """

    name: str
    state: State
    finding: str
    remedy: str = ""


def ok(name: str, finding: str) -> Check:
    """Nothing has to be done."""
    return Check(name=name, state=State.OK, finding=finding)


def warning(name: str, finding: str, *, remedy: str) -> Check:
    """It works, but not as it should."""
    return Check(name=name, state=State.WARNING, finding=finding, remedy=remedy)


def failed(name: str, finding: str, *, remedy: str) -> Check:
    """It does not work."""
    return Check(name=name, state=State.FAILED, finding=finding, remedy=remedy)
