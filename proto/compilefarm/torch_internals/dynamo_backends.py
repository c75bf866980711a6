"""Dynamo's registry of backends: who asks it for one that it does not know imports all of torch's own first, with what
these compile by, and reads the metadata of every distribution that is installed: 0.15 s of a processor.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any

__all__ = ["GROUP", "REGISTRY", "register_once_imported"]

# torch/_dynamo/backends/registry.py
REGISTRY = "torch._dynamo.backends.registry"
GROUP = "torch_dynamo_backends"


def register_once_imported(name: str, place: str) -> None:
    """Has the registry know a backend as soon as it is imported, as it would know it once it has read all metadata.

    Args:
        name: by which torch.compile is asked for it.
        place: "module:function"; imported when somebody asks.
    """
    entry = EntryPoint(name=name, value=place, group=GROUP)
    registry = sys.modules.get(REGISTRY)
    if registry is not None:
        _add(registry, entry)
    else:
        sys.meta_path.insert(0, _WhenImported(REGISTRY, lambda module: _add(module, entry)))


def _add(registry: ModuleType, entry: EntryPoint) -> None:
    # It may be another one in a later release, which then looks for the backend as always.
    known = getattr(registry, "_BACKENDS", None)
    if isinstance(known, dict):
        known.setdefault(entry.name, entry)


class _WhenImported(MetaPathFinder):
    """Has a function called with a module when it is imported, once."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._then = then

    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        if fullname != self._name or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def execute_and_tell(module: ModuleType) -> None:
                execute(module)
                self._then(module)

            loader.exec_module = execute_and_tell
        return spec
