"""What torch.compile was called with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from compilefarm.core.compiler_settings import settings_of_options

Options = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileOptions:
    """What torch.compile was called with.

    Attributes:
        mode: mode=.
        options: options=.
    """

    mode: str | None = None
    options: Options = field(default_factory=dict)


def merge_options(*, mode: str | None, options: Options | None) -> dict[str, object]:
    """The Inductor options that `mode=` and `options=` of `torch.compile` stand for; options win over the mode."""
    merged: dict[str, object] = {}
    if mode is not None and mode != "default":
        from compilefarm.torch_internals.modes import options_of_mode

        merged.update(options_of_mode(mode))
    merged.update(settings_of_options(options or {}))
    return merged
