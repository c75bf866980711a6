"""What a function reaches that belongs to its model: modules, and objects of classes that are written in Python."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from types import FunctionType, ModuleType

import torch

from compilefarm.packages.descriptions import PRIMITIVES

# Containers and objects within each other, and values in one of them.
_DEEPEST = 4
_MOST_VALUES = 10_000
_NOT_LOOKED_INTO = (torch.Tensor, FunctionType, ModuleType, type, str, bytes, int, float)
# Their classes are of the interpreter, or of a torch of one version.
_KNOWN_LIBRARIES = frozenset({"torch", *sys.stdlib_module_names})


def find_roots(*values: object) -> Iterator[object]:
    """Yields modules, and other objects of Python classes, that values are or hold; each once."""
    seen: dict[int, object] = {}
    for value in values:
        yield from _within(value, seen=seen, depth=0)


def _within(value: object, *, seen: dict[int, object], depth: int) -> Iterator[object]:
    if type(value) in PRIMITIVES or id(value) in seen or depth > _DEEPEST or len(seen) > _MOST_VALUES:
        return
    seen[id(value)] = value
    if isinstance(value, torch.nn.Module):
        yield value
    elif isinstance(value, dict):
        yield from _of_all(value.values(), seen=seen, depth=depth)
    elif isinstance(value, list | tuple | set | frozenset):
        yield from _of_all(value, seen=seen, depth=depth)
    elif not isinstance(value, _NOT_LOOKED_INTO) and hasattr(value, "__dict__"):
        if type(value).__module__.partition(".")[0] not in _KNOWN_LIBRARIES:
            yield value
        yield from _of_all(vars(value).values(), seen=seen, depth=depth)


def _of_all(values: Iterable[object], *, seen: dict[int, object], depth: int) -> Iterator[object]:
    for value in list(values):
        yield from _within(value, seen=seen, depth=depth + 1)
