"""What torch counts of its compiler's work."""

from __future__ import annotations

import importlib
from collections.abc import MutableMapping


def inductor_counts() -> MutableMapping[str, int]:
    """What has been counted of Inductor in this process, by name."""
    # torch/_dynamo/utils.py
    counts: MutableMapping[str, int] = importlib.import_module("torch._dynamo.utils").counters["inductor"]
    return counts
