"""Treatments of settings and variables that may decide a result, so that no pod gets what was made for another."""

from __future__ import annotations

import enum


class Treatment(enum.Enum):
    """What is done with one thing that might decide a result.

    Attributes:
        KEY: it is in the key, and workers do as it says.
        MATCHED: it is in the key, and only workers that have the same serve it: a compile cannot change it.
        NO_EFFECT: it is left out, since it cannot change a result; whoever classified it says why.
        BYPASS: where it differs from its default, the pod does not ask the farm.
    """

    KEY = enum.auto()
    MATCHED = enum.auto()
    NO_EFFECT = enum.auto()
    BYPASS = enum.auto()
