"""Why what Dynamo found is not recorded, or not installed."""

from __future__ import annotations


class Refusal(Exception):
    """Nothing is recorded or installed, and the frame is traced as without it."""


class Unsayable(Refusal):
    """A trace rests on something that has no faithful description."""


class Differs(Refusal):
    """What a variant rests on is not so in this process."""
