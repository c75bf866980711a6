"""What descriptions are put together from: names of classes and functions, digests of longer texts, and constants,
whose texts say all that there is to them."""

from __future__ import annotations

import functools
import hashlib
import importlib.machinery
import sys
from typing import Any

from compilefarm.reuse.names_in_code import value_at

CONSTANTS = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis))
# What stands for a value that is not there.
MISSING = "missing"
_COMPILED = tuple(importlib.machinery.EXTENSION_SUFFIXES)


def name_of(thing: Any) -> str:
    """The module and qualified name of a class or function."""
    return f"{thing.__module__}.{thing.__qualname__}"


@functools.lru_cache(maxsize=20_000)
def shortened(text: str) -> str:
    """A description as it is recorded: equal for equal ones."""
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:24]


def is_at_its_place(value: Any) -> bool:
    """Whether a class or function is the one that its name leads to, or is of a compiled module, which has one."""
    if isinstance(value, type) and _is_compiled(value.__module__, sys.modules.get(value.__module__)):
        return True
    return value_at(value.__module__, value.__qualname__) is value


def _is_compiled(name: str, module: Any) -> bool:
    return name in sys.builtin_module_names or str(getattr(module, "__file__", None)).endswith(_COMPILED)
