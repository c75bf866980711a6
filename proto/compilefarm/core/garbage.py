"""Python's search for garbage, paused where all that is made is kept: by imports, and by starts without tracing. To go
through the objects of a process that has imported a library of models takes 0.3 s, and what makes many objects may set
it off.
"""

from __future__ import annotations

import gc
from contextlib import AbstractContextManager

# Fewer than a process has once torch is imported, by far, and gone through in a millisecond.
_FEW_OBJECTS = 10_000


class PausedCollections(AbstractContextManager[None]):
    """Inside, nothing is collected, until `resume` is called. Where collections are off they stay so.

    One thread of a process at a time may be inside.
    """

    def __init__(self) -> None:
        self._is_paused = False

    def __enter__(self) -> None:
        self._is_paused = gc.isenabled()
        gc.disable()

    def __exit__(self, *_: object) -> None:
        self.resume()

    def resume(self) -> None:
        """Has garbage collected again, if it was before."""
        if self._is_paused:
            self._is_paused = False
            _count_as_old()
            gc.enable()


def _count_as_old() -> None:
    """Has all objects count as old, so that the next collection does not go through what was made meanwhile."""
    # A process that freezes what it has would find it unfrozen. Of the few that an interpreter itself keeps so, nobody
    # notices whether they are gone through.
    if gc.get_freeze_count() < _FEW_OBJECTS:
        gc.freeze()
        gc.unfreeze()
