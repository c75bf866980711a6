"""Dynamo's registry of backends: who asks it for one that it does not know imports all of torch's own first, with what
these compile by, and reads the metadata of every distribution that is installed: 0.15 s of a processor.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint
from types import ModuleType

from compilefarm.torch_internals.imported_modules import when_imported

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
    when_imported(REGISTRY, lambda registry: _add(registry, entry))


def _add(registry: ModuleType, entry: EntryPoint) -> None:
    # It may be another one in a later release, which then looks for the backend as always.
    known = getattr(registry, "_BACKENDS", None)
    if isinstance(known, dict):
        known.setdefault(entry.name, entry)
