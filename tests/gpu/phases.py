"""What a call is made of: imports on its way, and functions of Python that it calls."""

from __future__ import annotations

import importlib
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def timing_imports() -> Iterator[dict[str, float]]:
    """Seconds of each import inside, by the name of what was imported first: what that imports counts with it.

    Stands in for what finds modules and loads them (Lib/importlib/_bootstrap.py).
    """
    bootstrap: Any = importlib._bootstrap  # type: ignore[attr-defined]
    original, seconds = bootstrap._find_and_load, defaultdict[str, float](float)
    depth = 0

    def find_and_load(name: str, *rest: Any) -> Any:
        nonlocal depth
        depth += 1
        begin = time.perf_counter()
        try:
            return original(name, *rest)
        finally:
            depth -= 1
            if not depth:
                seconds[name] += time.perf_counter() - begin

    bootstrap._find_and_load = find_and_load
    try:
        yield seconds
    finally:
        bootstrap._find_and_load = original


def count_python_calls(call: Callable[[], object]) -> int:
    """How many functions of Python a call of a function calls, itself not counted."""
    return sum(python_calls(call).values())


def python_calls(call: Callable[[], object]) -> Counter[str]:
    """The functions of Python that a call of a function calls, in this thread."""
    found = Counter[str]()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            found[f"{frame.f_code.co_filename}:{frame.f_code.co_qualname}"] += 1

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found
