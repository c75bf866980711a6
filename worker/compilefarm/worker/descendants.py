"""Finds and kills processes that descend from a child but left its group and session. A sandbox needs no such search.

A process whose parent ends belongs to the next of its ancestors that asked for such (PR_SET_CHILD_SUBREAPER, prctl(2)).
Children ask for it, so that what they start stays below them; so does their fork server, below which it comes to lie
when they have ended.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

# A process that was killed ends at once, unless the kernel has it wait for a device.
_LIMIT_SECONDS = 5.0
# States of proc(5).
_STILL = "TtZX"
_WAITING = "D"


def descendants_of(pids: Collection[int], *, apart_from: Collection[int] = ()) -> set[int]:
    """Returns the descendants of some processes, without those below `apart_from`."""
    return _below(pids, dict(_parents()), apart_from=apart_from)


def have_changed(pids: Collection[int], *, since: Collection[int]) -> bool:
    """Returns whether others descend from some processes than before, or that cannot be told, because one ends at this
    moment.
    """
    parents = dict(_parents())
    return None in parents.values() or _below(pids, parents) != since


def are_still(pids: Collection[int], *, may_wait: bool) -> bool:
    """Returns whether none of some processes goes on: each was stopped, or has ended.

    Args:
        pids: the processes.
        may_wait: whether one counts, too, that waits for what no signal interrupts, as for a process that it starts.
    """
    still = f"{_STILL}{_WAITING}" if may_wait else _STILL
    return all(stat is None or stat[0] in still for stat in map(_stat, pids))


def kill_descendants(children: Collection[int]) -> None:
    """Kills all descendants of this process but some children and their descendants."""
    limit = time.monotonic() + _LIMIT_SECONDS
    while (descendants := descendants_of({os.getpid()}, apart_from=children)) and time.monotonic() < limit:
        # All at once: whoever is left could start others.
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in descendants:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        for pid in descendants:
            _wait(pid, until=limit)


def _wait(pid: int, *, until: float) -> None:
    """Waits for a process that was killed, if it is a child of this one by now."""
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        handle = os.pidfd_open(pid)
        try:
            select.select([handle], [], [], max(0.0, until - time.monotonic()))
            os.waitpid(pid, os.WNOHANG)
        finally:
            os.close(handle)


def _below(pids: Collection[int], parents: Mapping[int, int | None], *, apart_from: Collection[int] = ()) -> set[int]:
    found: set[int] = set()
    more = set(pids)
    while more:
        more = {pid for pid, parent in parents.items() if parent in more and pid not in apart_from} - found
        found |= more
    return found


def _parents() -> Iterator[tuple[int, int | None]]:
    """Yields each process and its parent; None if it ended meanwhile."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            stat = _stat(int(entry.name))
            yield int(entry.name), None if stat is None else int(stat[1])


def _stat(pid: int) -> list[str] | None:
    """Returns what proc(5) tells of a process, from its state on; None if it has ended."""
    try:
        # The name, in parentheses, may hold anything.
        return Path("/proc", str(pid), "stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
