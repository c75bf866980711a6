"""The modes of torch.compile."""

from __future__ import annotations

from collections.abc import Mapping


def options_of_modes() -> Mapping[str, Mapping[str, object]]:
    """The Inductor options that each mode of torch.compile stands for."""
    # Imported late: it brings torch, which a pod imports when a graph comes.
    import torch._inductor

    modes: Mapping[str, Mapping[str, object]] = torch._inductor.list_mode_options()
    return modes


def options_of_mode(mode: str) -> Mapping[str, object]:
    """The same of one mode.

    Raises:
        RuntimeError: torch has no such mode.
    """
    import torch._inductor

    options: Mapping[str, object] = torch._inductor.list_mode_options(mode)
    return options
