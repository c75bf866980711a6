"""Exceptions of the program's own signal handlers.

Python runs a handler between two steps of the main thread, whatever that is doing. What a handler raises (a time limit
by SIGALRM, as task queues have them) is meant for the program, and says nothing of the code that it arrives in.
"""

from __future__ import annotations

import functools
import signal
import traceback
from collections.abc import Set
from types import CodeType
from typing import Any


def raise_interruption(error: BaseException) -> None:
    """Raises what a signal handler has raised, if an exception is that or was raised because of it; passes otherwise.

    To be called wherever all exceptions are caught, and taken for something else than an end.
    """
    interruption = find_interruption(error)
    if interruption is not None:
        raise interruption


def find_interruption(error: BaseException) -> BaseException | None:
    """Returns what a signal handler has raised, among an exception and its causes; None if there is nothing such."""
    handlers = _codes_of_handlers()
    seen: set[int] = set()
    # What was handled when an exception was raised (__context__) is none of its causes: programs try again after one.
    cause: BaseException | None = error
    while handlers and cause is not None and id(cause) not in seen:
        if any(frame.f_code in handlers for frame, _ in traceback.walk_tb(cause.__traceback__)):
            return cause
        seen.add(id(cause))
        cause = cause.__cause__
    return None


def _codes_of_handlers() -> Set[CodeType]:
    handlers = map(signal.getsignal, signal.valid_signals())
    return {code for handler in handlers if callable(handler) and (code := _find_code(handler)) is not None}


def _find_code(handler: Any) -> CodeType | None:
    """The code that a call of something callable begins with; None if it is not Python."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    function = getattr(handler, "__func__", handler)
    if not hasattr(function, "__code__"):
        function = type(function).__call__
    return getattr(function, "__code__", None)
