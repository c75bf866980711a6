"""Functions that are named in arguments of a command."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any


class NoSuchFunction(Exception):
    """A name names no function; the message says why."""


def get_function(name: str) -> Callable[..., Any]:
    """Returns the function that MODULE:FUNCTION names.

    Raises:
        NoSuchFunction: the module cannot be imported, or has no such function.
    """
    module, _, function = name.partition(":")
    # As `python -m` finds modules.
    sys.path.insert(0, os.getcwd())
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise NoSuchFunction(f"{name!r} names no function of a module that can be imported: {error}") from error
    return found
