"""Triton's knobs as they stand in this process.

Beside `targets`, `operators` and `settings` this module touches private names (triton/knobs.py);
tests/graph/test_private_torch.py says what broke when a release moves one.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

from compilefarm.core.treatment import Treatment
from compilefarm.core.triton_knobs import KNOBS


def matched_knobs() -> list[str]:
    """Knobs that decide what a kernel becomes and are not as Triton has them, as "triton.NAME=value", sorted.

    One that nobody has classified is among them.
    """
    return sorted(
        f"triton.{name}={value!r}"
        for name, group, default in _knobs()
        if KNOBS.get(name, (Treatment.MATCHED, ""))[0] is Treatment.MATCHED
        and (value := getattr(group, name.partition(".")[2])) != default
    )


def knob_names() -> list[str]:
    """Every knob of the Triton that is installed ("language.fp32_default")."""
    return [name for name, _, _ in _knobs()]


def _knobs() -> Iterator[tuple[str, object, object]]:
    """Yields the name of each knob, what holds it, and its default."""
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
