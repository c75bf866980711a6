"""Collections of Python's garbage, which hold all callers, and memory that was freed."""

from __future__ import annotations

import ctypes
import gc

# Of objects that were made and not freed, until young ones are looked through; and how many of these collections come
# before the next older ones are. Python's own: 700, 10, 10, for programs that hold less.
_THRESHOLDS = 10_000, 20, 10
# mallopt(3): parameters of glibc's malloc, and where it begins.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
# Larger pieces go back to the system at once: more than the largest answer that is sent whole (cache_service.proto:
# FindEntryRequest.ahead_bytes, and an entry), and than headers of calls that are flooded with.
_LARGE_BYTES = 4 * 1024 * 1024
# Free memory at the end of a heap goes back beyond that. Less, and each answer that is sent gives its pages back.
_KEPT_FREE_BYTES = 2 * _LARGE_BYTES


def collect_seldom() -> None:
    """Has this process look for garbage less often, and never among what there is now: modules, and what was started.

    While a thousand calls wait, a full collection takes a large part of a second (docs/performance.md). What is in no
    cycle is freed at once, as before.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)


def return_freed_memory() -> None:
    """Has the C library give large pieces of memory, and what is free at the end of its heaps, back to the system.

    Otherwise it learns from each large piece that larger ones are not to be given back, so that a flood of calls, whose
    pieces lie between others, leaves gigabytes with a process that does nothing.

    With bounds of 32 KiB the pages of each answer of a megabyte were made anew, which took half of the 1.7 ms of a
    processor that it takes. Floods leave about as much, or a third more
    (docs/decisions/0084-large-answers-keep-their-pages.md).
    """
    set_parameter = getattr(ctypes.CDLL(None), "mallopt", None)
    # Other C libraries have nothing like it.
    if set_parameter is not None:
        set_parameter(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        set_parameter(_M_TRIM_THRESHOLD, _KEPT_FREE_BYTES)
