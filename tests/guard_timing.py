"""Has Dynamo leave out a measurement that it makes for its log alone, in processes that trace many small programs."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from unittest import mock

_MODULE = "torch._dynamo.guards"


def is_dynamo_imported() -> bool:
    """Whether this process may have guards yet."""
    return _MODULE in sys.modules


def guards_not_timed() -> AbstractContextManager[object]:
    """While this is entered, Dynamo does not time the guards of a graph that it has traced."""
    # torch/_dynamo/guards.py: after each graph, Dynamo empties the processor's caches to time the guards for its log.
    # Of what tracing a small program costs, that is a third to two thirds.
    return mock.patch(f"{_MODULE}.profile_guard_manager", new=_not_timed)


def _not_timed(*_: object) -> float:
    # A mock would keep what it was called with: the locals of all frames.
    return 0.0
