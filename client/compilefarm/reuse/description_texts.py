"""What descriptions are put together from: names of classes and functions, digests of longer texts, and constants,
whose texts say all that there is to them."""

from __future__ import annotations

import functools
import hashlib
import importlib.machinery
import sys
import types
from typing import Any

from compilefarm.reuse.names_in_code import OF_ALL_MODULES, value_at

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
    module, name = value.__module__, value.__qualname__
    if isinstance(value, type) and _is_compiled(module, sys.modules.get(module)):
        return True
    return _is_member_at_its_place(value, module, name) or value_at(module, name) is value


def _is_member_at_its_place(value: Any, module_name: str, qualified_name: str) -> bool:
    """Whether something is in the class of a module that its name says, which most functions are, and value_at would
    find it there: a class that hides what it holds has a metaclass that says so.
    """
    module, (outer, _, name) = sys.modules.get(module_name), qualified_name.partition(".")
    held = module.__dict__ if type(module) is types.ModuleType and outer not in OF_ALL_MODULES else {}
    owner: Any = held.get(outer)
    metaclass = type(owner)
    if metaclass is not type and (metaclass.__base__ is not type or "__dict__" in metaclass.__dict__):
        return False
    return owner.__dict__.get(name) is value


def _is_compiled(name: str, module: Any) -> bool:
    return name in sys.builtin_module_names or str(getattr(module, "__file__", None)).endswith(_COMPILED)
