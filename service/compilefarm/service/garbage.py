"""Collections of Python's garbage, which hold all callers."""

from __future__ import annotations

import gc

# Of objects that were made and not freed, until young ones are looked through; and how many of these collections come
# before the next older ones are. Python's own: 700, 10, 10, for programs that hold less.
_THRESHOLDS = 10_000, 20, 10


def collect_seldom() -> None:
    """Has this process look for garbage less often, and never among what there is now: modules, and what was started.

    While a thousand calls wait, a full collection takes a large part of a second (docs/performance.md). What is in no
    cycle is freed at once, as before.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
