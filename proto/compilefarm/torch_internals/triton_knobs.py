"""Triton's knobs (triton/knobs.py)."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator


def all_knobs() -> Iterator[tuple[str, object, object]]:
    """Yields the name of each knob of the Triton that is installed ("language.fp32_default"), what holds it, and its
    default."""
    if importlib.util.find_spec("triton") is None:
        return
    from triton import knobs

    for group_name, group in vars(knobs).items():
        if isinstance(group, knobs.base_knobs):
            for name, knob in _fields(type(group)):
                # Those that are no descriptors were read from variables when Triton was imported.
                default = getattr(knob, "default", None) if isinstance(knob, knobs.env_base) else type(knob)()
                yield f"{group_name}.{name}", group, default


def _fields(kind: type) -> Iterator[tuple[str, object]]:
    for name in sorted({*vars(kind), *kind.__annotations__}):
        knob = vars(kind).get(name)
        is_hook_chain = callable(knob) and not isinstance(knob, type)
        if not (name.startswith("_") or isinstance(knob, property) or is_hook_chain):
            yield name, knob
