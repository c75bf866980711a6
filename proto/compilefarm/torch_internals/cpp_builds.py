"""How Inductor builds C++."""

from __future__ import annotations

from collections.abc import Sequence


def compilers_tried() -> str | Sequence[str | None]:
    """One compiler, or several in the order in which they are tried; None stands for one that would be downloaded."""
    # Late: a pod asks it where no graph has come, too.
    from torch._inductor import config  # torch/_inductor/config.py: cpp.cxx

    cxx: str | Sequence[str | None] = config.cpp.cxx
    return cxx
