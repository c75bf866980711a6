"""Stores of hundreds of thousands of objects: what is done with all of them is done in steps, between which others have
their turn.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest

from compilefarm.store import uses as uses_module
from compilefarm.store.backend import Backend, StoredObject, WrappingBackend
from compilefarm.store.blobs import few_at_a_time
from compilefarm.store.collector import Collector
from compilefarm.store.content_addressed import ContentAddressedStore
from compilefarm.store.counting import CountingBackend
from compilefarm.store.damage import Damage
from compilefarm.store.layout import BLOBS, CHECKS, FORMER_SET_ASIDE, MANIFESTS, SET_ASIDE, USES, blob_path, use_path
from compilefarm.store.opening import open_backend
from compilefarm.store.signing_policy import UNSIGNED
from compilefarm.store.steps import STEP, sort_in_steps
from compilefarm.store.uses import LEASE_SECONDS, Uses

NOW = 1e6
OBJECTS = 20 * STEP


class Listed(WrappingBackend):
    """A backend that says that it has many blobs, and notes of their use."""

    async def objects(self, folder: str) -> AsyncIterator[StoredObject]:
        paths = (blob_path(f"{number:064x}") for number in range(OBJECTS) if folder in (BLOBS, USES))
        for path in paths if folder == BLOBS else map(use_path, paths):
            yield StoredObject(path=path, size_bytes=1, modified_seconds=NOW, tag="")


class Turns:
    """Counts turns of the event loop, and what is done in each."""

    def __init__(self) -> None:
        self.done: Counter[int] = Counter()
        self._turn = 0

    @asynccontextmanager
    async def counting(self) -> AsyncIterator[None]:
        counting = asyncio.create_task(self._count())
        yield
        counting.cancel()

    def note(self) -> None:
        self.done[self._turn] += 1

    def noting(self, function: Callable[[], float]) -> Callable[[], float]:
        def noted() -> float:
            self.note()
            return function()

        return noted

    async def _count(self) -> None:
        while True:
            self._turn += 1
            await asyncio.sleep(0)


def counted(backend: Backend) -> CountingBackend:
    return CountingBackend(backend, areas=(BLOBS, MANIFESTS, CHECKS, SET_ASIDE, FORMER_SET_ASIDE))


async def test_others_have_their_turn_while_it_is_looked_for_what_may_go(tmp_path: Path) -> None:
    backend, turns = counted(Listed(await open_backend(str(tmp_path)))), Turns()
    # Each object that is looked at is held against the time.
    uses = Uses(backend, now=turns.noting(lambda: NOW))
    damage = Damage(backend, now=uses.now)
    manifests = ContentAddressedStore(backend, uses=uses, damage=damage, signing=UNSIGNED).manifests
    async with turns.counting():
        collected = await Collector(backend, manifests=manifests, uses=uses).collect(limit_bytes=0)
    assert (collected.blobs, sum(turns.done.values()) >= OBJECTS) == (0, True)
    assert max(turns.done.values()) <= 2 * STEP


async def test_others_have_their_turn_while_work_is_done_that_waits_for_nothing() -> None:
    turns = Turns()

    async def work(number: int) -> int:
        turns.note()
        return number

    async with turns.counting():
        assert await few_at_a_time(work, range(OBJECTS)) == list(range(OBJECTS))
    assert max(turns.done.values()) <= 2 * STEP


async def test_a_use_is_noted_without_a_look_at_all_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uses_module, "_MOST_REMEMBERED", 100)
    seconds, asked = NOW, 0

    def now() -> float:
        nonlocal asked
        asked += 1
        return seconds

    uses = Uses(await open_backend(str(tmp_path)), now=now)
    for number in range(1000):
        await uses.note(f"{number}", written_seconds=seconds)
    seconds += 2 * LEASE_SECONDS
    asked = 0
    for number in range(400):
        await uses.note(f"later {number}", written_seconds=seconds)
    assert asked <= 400 * 10
    # Those whose lease is over are forgotten, a few with each; the others are not.
    assert [uses.used_seconds(path) for path in ("0", "999", "later 0")] == [0.0, 0.0, seconds]


def test_what_is_sorted_in_steps_is_sorted() -> None:
    numbers = [Random(0).randrange(OBJECTS) for _ in range(OBJECTS)]
    places = list(enumerate(numbers))
    assert sort_in_steps(places, key=lambda place: place[1]) == sorted(places, key=lambda place: place[1])
