"""Results of the checks of `compilefarm doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """How severe a finding is."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The result of one check.

    Attributes:
        name: of the check.
        state: how severe the finding is.
        finding: what was found.
        remedy: what to do about it; empty if nothing has to be done.
    """

    name: str
    state: State
    finding: str
    remedy: str = ""


def ok(name: str, finding: str) -> Check:
    """Returns a result about which nothing has to be done."""
    return Check(name=name, state=State.OK, finding=finding)


def warning(name: str, finding: str, *, remedy: str) -> Check:
    """Returns the result for what works, but not as it should."""
    return Check(name=name, state=State.WARNING, finding=finding, remedy=remedy)


def failed(name: str, finding: str, *, remedy: str) -> Check:
    """Returns the result for what does not work."""
    return Check(name=name, state=State.FAILED, finding=finding, remedy=remedy)
