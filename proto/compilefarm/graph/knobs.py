"""Triton's knobs as they stand in this process."""

from __future__ import annotations

import functools
from operator import itemgetter

from compilefarm.core.treatment import Treatment
from compilefarm.core.triton_knobs import KNOBS
from compilefarm.torch_internals.triton_knobs import all_knobs


def matched_knobs() -> list[str]:
    """Knobs that decide what a kernel becomes and are not as Triton has them, as "triton.NAME=value", sorted.

    One that nobody has classified is among them.
    """
    return [
        f"triton.{name}={value!r}"
        for name, group, attribute, default in _deciding_knobs()
        if (value := getattr(group, attribute)) != default
    ]


@functools.cache
def _deciding_knobs() -> list[tuple[str, object, str, object]]:
    """Name, what holds it, how that calls it, and default."""
    return sorted(
        (
            (name, group, name.partition(".")[2], default)
            for name, group, default in all_knobs()
            if KNOBS.get(name, (Treatment.MATCHED, ""))[0] is Treatment.MATCHED
        ),
        key=itemgetter(0),
    )


def knob_names() -> list[str]:
    """Every knob of the Triton that is installed ("language.fp32_default")."""
    return [name for name, _, _ in all_knobs()]
