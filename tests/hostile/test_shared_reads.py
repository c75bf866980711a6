"""Large blobs that many read, or that somebody asks for again and again: fetched and checked once at a time."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import IO

import pytest

from compilefarm.core.digests import digest_of
from compilefarm.core.errors import NotStored
from compilefarm.service.fair_semaphore import FairSemaphore
from compilefarm.store.artifact_store import ArtifactStore
from compilefarm.store.backend import Backend, StoredObject, WrappingBackend
from compilefarm.store.completing import entered
from compilefarm.store.layout import blob_path
from compilefarm.store.local import open_directory
from compilefarm.store.opening import build_store
from compilefarm.store.shared_files import FRESH_SECONDS
from compilefarm.store.testing import MovedClock

LARGE = os.urandom(9 * 1024 * 1024)
DIGEST = digest_of(LARGE)


class Fetches(WrappingBackend):
    """Counts what is fetched as a file, and fetches when `free` is set; sets `found` when something was looked for."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.found = asyncio.Event()
        self.fetched = 0
        self.files: list[IO[bytes] | None] = []
        self.asked = asyncio.Event()
        self.free = asyncio.Event()
        self.free.set()

    async def find_object(self, path: str) -> StoredObject | None:
        found = await super().find_object(path)
        self.found.set()
        return found

    async def open(self, path: str) -> IO[bytes] | None:
        self.fetched += 1
        self.asked.set()
        await self.free.wait()
        self.files.append(await super().open(path))
        return self.files[-1]


@pytest.fixture
def clock() -> MovedClock:
    return MovedClock()


@pytest.fixture
async def fetches(tmp_path: Path) -> Fetches:
    return Fetches(open_directory(str(tmp_path)))


@pytest.fixture
async def store(fetches: Fetches, clock: MovedClock) -> ArtifactStore:
    store = await build_store(fetches, cache_bytes=1024 * 1024, now=clock)
    await store.put_blob(LARGE, digest=DIGEST)
    return store


async def read(store: ArtifactStore, *, offset_bytes: int = 0) -> bytes:
    async with store.reading(DIGEST) as content:
        await asyncio.sleep(0)
        return await content.read(offset_bytes, len(LARGE))


async def test_those_who_read_at_the_same_time_share_what_is_fetched(store: ArtifactStore, fetches: Fetches) -> None:
    fetches.free.clear()
    offsets = range(20)
    reads = [asyncio.create_task(read(store, offset_bytes=offset)) for offset in offsets]
    await fetches.asked.wait()
    fetches.free.set()
    assert await asyncio.gather(*reads) == [LARGE[offset:] for offset in offsets]
    assert fetches.fetched == 1


async def test_one_who_asks_and_goes_again_and_again_has_it_checked_once(
    store: ArtifactStore, fetches: Fetches
) -> None:
    fetches.free.clear()
    for _ in range(50):
        gone = asyncio.create_task(read(store))
        await fetches.asked.wait()
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
    fetches.found.clear()
    last = asyncio.create_task(read(store))
    await fetches.found.wait()
    fetches.free.set()
    assert await last == LARGE
    assert fetches.fetched == 1


async def test_one_who_goes_away_keeps_its_place_for_as_long_as_what_it_began_takes(
    store: ArtifactStore, fetches: Fetches
) -> None:
    places, began, other_began = FairSemaphore("reading", places=2, account_places=1), list[str](), asyncio.Event()

    async def read_in_place(account: str) -> bytes:
        async with places.acquired(account):
            began.append(account)
            if account == "modest":
                other_began.set()
            async with entered(store.reading(DIGEST)) as content:
                return await content.read(0, len(LARGE))

    fetches.free.clear()
    gone = asyncio.create_task(read_in_place("greedy"))
    await fetches.asked.wait()
    for _ in range(3):
        gone.cancel()
        await asyncio.sleep(0)
    again = asyncio.create_task(read_in_place("greedy"))
    modest = asyncio.create_task(read_in_place("modest"))
    await other_began.wait()
    assert began == ["greedy", "modest"]
    fetches.free.set()
    assert await asyncio.gather(again, modest) == [LARGE, LARGE]
    assert gone.cancelled()


async def test_whoever_comes_later_has_it_checked_again(
    store: ArtifactStore, fetches: Fetches, clock: MovedClock, tmp_path: Path
) -> None:
    async with store.reading(DIGEST):
        assert await read(store) == LARGE
        assert fetches.fetched == 1
        (tmp_path / blob_path(DIGEST)).write_bytes(b"damage" + LARGE[6:])
        clock.move(FRESH_SECONDS)
        with pytest.raises(NotStored, match="was corrupt"):
            await read(store)
    # Once more before it is set aside: sound bytes may have come in its place.
    assert fetches.fetched == 3


async def test_no_file_stays_open(store: ArtifactStore, fetches: Fetches) -> None:
    await asyncio.gather(*(read(store) for _ in range(5)))
    assert [file.closed for file in fetches.files] == [True]
