"""Processes of this machine, by what /proc says now."""

from __future__ import annotations

import contextlib
from pathlib import Path


def descendants(pid: int) -> set[int]:
    """Processes that descend from a process, by what /proc says now."""
    parents = _parents()
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def last_descendants(pid: int) -> set[int]:
    """Those that have no children themselves."""
    return descendants(pid) - set(_parents().values())


def parent_of(pid: int) -> int | None:
    """None if it has ended."""
    return _parents().get(pid)


def _parents() -> dict[int, int]:
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                # The name in parentheses may hold anything, spaces too.
                # A process may call itself anything, also what is no text.
                stat = (entry / "stat").read_text(errors="replace")
                parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    return parents


def alive(pids: set[int]) -> set[int]:
    """Those of some processes that still run."""
    return {pid for pid in pids if is_alive(pid)}


def is_alive(pid: int) -> bool:
    """Whether a process runs. One that has ended and that nobody has waited for does not."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] != "Z"
    return False
