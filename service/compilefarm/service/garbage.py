"""Collections of Python's garbage, which hold all callers, and memory that was freed."""

from __future__ import annotations

import ctypes
import gc

# Of objects that were made and not freed, until young ones are looked through; and how many of these collections come
# before the next older ones are. Python's own: 700, 10, 10, for programs that hold less.
_THRESHOLDS = 10_000, 20, 10
# mallopt(3): parameters of glibc's malloc, and where it begins.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
# Headers of calls that are flooded with have some ten thousand bytes and more.
_LARGE_BYTES = 32 * 1024


def collect_seldom() -> None:
    """Has this process look for garbage less often, and never among what there is now: modules, and what was started.

    While a thousand calls wait, a full collection takes a large part of a second (docs/performance.md). What is in no
    cycle is freed at once, as before.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)


def return_freed_memory() -> None:
    """Has the C library give large pieces of memory back to the system as soon as they are freed.

    Otherwise it learns from each large piece that such pieces are not to be given back, so that a flood of calls, whose
    pieces lie between others, leaves gigabytes with a process that does nothing.

    The pages of an answer of a megabyte are made anew each time, which takes 0.6 ms of a processor. To have all that is
    free given back every two seconds (malloc_trim) takes less, but two strangers' connections with tokens of 3 MB took
    6.8 GB in six seconds then, of which 5 stayed, and 95 MB as it is.
    """
    set_parameter = getattr(ctypes.CDLL(None), "mallopt", None)
    # Other C libraries have nothing like it.
    if set_parameter is not None:
        set_parameter(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        set_parameter(_M_TRIM_THRESHOLD, _LARGE_BYTES)
