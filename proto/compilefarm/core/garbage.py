"""Python's search for garbage, paused where all that is made is kept: by imports, and by starts without tracing. To go
through the objects of a process that has imported a library of models takes 0.3 s, and what makes many objects may set
it off.
"""

from __future__ import annotations

import gc
import threading
from contextlib import AbstractContextManager

# Fewer than a process has once torch is imported, by far, and gone through in a millisecond.
_FEW_OBJECTS = 10_000
_of_thread = threading.local()


class PausedCollections(AbstractContextManager[None]):
    """Inside, nothing is collected, until `resume` is called. Where collections are off they stay so.

    One thread of a process at a time may be inside.
    """

    def __init__(self) -> None:
        self._is_paused = False

    def __enter__(self) -> None:
        self._is_paused = gc.isenabled() and not getattr(_of_thread, "leaves_to_others", False)
        if self._is_paused:
            gc.disable()

    def __exit__(self, *_: object) -> None:
        self.resume()

    def resume(self) -> None:
        """Has garbage collected again, if it was before."""
        if self._is_paused:
            self._is_paused = False
            _count_as_old()
            gc.enable()


def leave_to_others() -> None:
    """Has nothing paused by this thread: it runs beside the program, which may switch collections off meanwhile."""
    _of_thread.leaves_to_others = True


def _count_as_old() -> None:
    """Has all objects count as old, so that the next collection does not go through what was made meanwhile."""
    # A process that freezes what it has would find it unfrozen. Of the few that an interpreter itself keeps so, nobody
    # notices whether they are gone through.
    if gc.get_freeze_count() < _FEW_OBJECTS:
        gc.freeze()
        gc.unfreeze()
