"""Work on hundreds of thousands of objects in steps, between which other work has its turn.

A thread alone does not do that: what Python does in one call of C, sorting or joining sets, holds the lock that all of
its threads share.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TypeVar

T = TypeVar("T")

# Objects of a step; each takes some microseconds.
STEP = 500
# Sorted in one call, which takes 2 ms.
_SORTED_AT_ONCE = 4096


def in_steps(items: Iterable[T], *, step: int = STEP) -> AsyncIterator[T]:
    """Goes through items, and lets the event loop do other work after each step.

    Args:
        items: of which there may be hundreds of thousands.
        step: how many are gone through at a time.
    """
    return _Steps(items, step=step)


class _Steps(AsyncIterator[T]):
    """No generator, which a loop that is left early would leave open."""

    def __init__(self, items: Iterable[T], *, step: int) -> None:
        self._items = iter(items)
        self._step = step
        self._done = 0

    async def __anext__(self) -> T:
        self._done += 1
        if self._done % self._step == 0:
            await asyncio.sleep(0)
        for item in self._items:
            return item
        raise StopAsyncIteration


def sort_in_steps(items: Iterable[T], *, key: Callable[[T], float | tuple[float, ...]]) -> list[T]:
    """Sorts items. For a thread, in which it takes a second for some hundred thousand."""
    known = list(items)
    places = [(key(item), place) for place, item in enumerate(known)]
    parts = [sorted(places[start : start + _SORTED_AT_ONCE]) for start in range(0, len(places), _SORTED_AT_ONCE)]
    return [known[place] for _, place in heapq.merge(*parts)]


async def sorted_in_thread(items: Iterable[T], *, key: Callable[[T], float | tuple[float, ...]]) -> list[T]:
    """Sorts items while the event loop does other work."""
    return await asyncio.to_thread(sort_in_steps, items, key=key)
