"""A meter of what an event loop is kept busy with: the callback that took longest, and files opened in its thread.

Callbacks are measured in processor time of the thread that runs the loop. That leaves out the time in which the
machine gave the processor to others, so it is the same on a machine that is busy; what waits for a disk instead of
computing shows by the files that are opened.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, kw_only=True)
class LoopUse:
    """What was seen of the loops of other threads than the one that measures.

    Attributes:
        callbacks: how many ran.
        longest_seconds: processor time of the one that took longest.
        longest: what that was.
        opened: files that were opened by one, below a folder.
    """

    callbacks: int = 0
    longest_seconds: float = 0.0
    longest: str = ""
    opened: list[str] = field(default_factory=list)


_running = threading.local()
_folders: dict[str, LoopUse] = {}


def _note_opened(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open" or not getattr(_running, "callback", False) or not isinstance(arguments[0], str):
        return
    for folder, use in list(_folders.items()):
        if arguments[0].startswith(folder):
            use.opened.append(arguments[0])


@contextmanager
def metered_loops(folder: str) -> Iterator[LoopUse]:
    """Measures every event loop that runs in another thread meanwhile.

    Args:
        folder: below which no file should be opened by a callback.
    """
    use, own, run = LoopUse(), threading.get_ident(), asyncio.Handle._run

    def measured(handle: asyncio.Handle) -> None:
        if threading.get_ident() == own:
            run(handle)
            return
        _running.callback = True
        begun = time.thread_time()
        try:
            run(handle)
        finally:
            seconds = time.thread_time() - begun
            _running.callback = False
            use.callbacks += 1
            if seconds > use.longest_seconds:
                use.longest_seconds, use.longest = seconds, repr(handle)

    # An audit hook stays for ever; this one does nothing without a folder.
    if not _folders:
        sys.addaudithook(_note_opened)
    _folders[folder] = use
    # Other tests have left much to collect, and it would count for whichever callback meets it.
    gc.collect()
    gc.disable()
    asyncio.Handle._run = measured  # type: ignore[method-assign]
    try:
        yield use
    finally:
        asyncio.Handle._run = run  # type: ignore[method-assign]
        gc.enable()
        del _folders[folder]
