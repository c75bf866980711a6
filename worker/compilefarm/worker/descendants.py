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
from collections.abc import Collection, Iterator
from pathlib import Path

# A process that was killed ends at once, unless the kernel has it wait for a device.
_LIMIT_SECONDS = 5.0


def descendants_of(pids: Collection[int], *, apart_from: Collection[int] = ()) -> set[int]:
    """Returns the descendants of some processes, without those below `apart_from`."""
    parents = dict(_parents())
    found: set[int] = set()
    more = set(pids)
    while more:
        more = {pid for pid, parent in parents.items() if parent in more and pid not in apart_from} - found
        found |= more
    return found


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


def _parents() -> Iterator[tuple[int, int]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            # It may end meanwhile. The name, in parentheses, may hold anything.
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                stat = (entry / "stat").read_text(errors="replace")
                yield int(entry.name), int(stat.rpartition(")")[2].split()[1])
