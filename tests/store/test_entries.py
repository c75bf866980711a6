"""Stored cache entries: which ones go, and where they lie."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from compilefarm.core.cache_entries import describe
from compilefarm.core.digests import digest_of
from compilefarm.core.errors import NotStored, StoreFull
from compilefarm.store.checked_entries import CheckedEntries, CheckedEntry
from compilefarm.store.entries import FRESH_SECONDS, EntryStore
from compilefarm.store.entry_collector import NOTHING_COMING
from compilefarm.store.layout import STAGING
from compilefarm.store.opening import CACHES, MEMORY, caches_beside, open_caches
from compilefarm.store.testing import MovedClock
from compilefarm.store.uses import RENEWAL_SECONDS
from compilefarm.v1.cache_service_pb2 import CacheEntry, TorchCache
from tests.store.s3_server import S3Server

FX_GRAPH = TorchCache.TORCH_CACHE_FX_GRAPH
DAY = 24 * 3600.0


async def store_at(location: Path | str, clock: MovedClock, *, kilobytes: int = 100) -> EntryStore:
    return await open_caches(str(location), size_limit_bytes=kilobytes * 1000, lifetime_seconds=DAY, now=clock)


async def put(
    store: EntryStore, key: str, *, kilobytes: int = 10, namespace: str = "", coming: Mapping[str, int] = NOTHING_COMING
) -> None:
    content = key[:1].encode() * (kilobytes * 1000)
    entry = describe(content, cache=FX_GRAPH, key=key)
    entry.namespace = namespace
    await store.reserve({**coming, namespace: len(content)}, namespace=namespace)
    async with store.staging(entry.digest) as blob:
        await blob.write(content)
        await store.put(entry, blob)


async def kept(store: EntryStore, *keys: str, namespace: str = "") -> str:
    """Those of some keys that are stored. They count as read."""
    found = []
    for key in keys:
        try:
            async with store.reading(FX_GRAPH, key, namespaces=[namespace]):
                found.append(key)
        except NotStored:
            continue
    return "".join(found)


async def read(store: EntryStore, key: str) -> bytes:
    async with store.reading(FX_GRAPH, key, namespaces=[""]) as (entry, content):
        found = await content.read(0, entry.size_bytes)
        # Whoever reads it may do so.
        entry.Clear()
    return found


async def test_what_was_read_is_what_another_service_has_written_since(tmp_path: Path) -> None:
    clock = MovedClock()
    store, other = await store_at(tmp_path, clock), await store_at(tmp_path, clock)
    await put(store, "key", kilobytes=10)
    assert [await read(store, "key") for _ in range(2)] == [b"k" * 10_000] * 2
    await put(other, "key", kilobytes=20)
    assert [await read(store, "key") for _ in range(2)] == [b"k" * 20_000] * 2


async def test_copies_of_entries_in_a_bucket_that_look_alike_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of a copy has the number of the last one, and its time, where the kernel tells times by its ticks."""
    fstat = os.fstat

    def alike(descriptor: int) -> SimpleNamespace:
        told = fstat(descriptor)
        return SimpleNamespace(st_dev=1, st_ino=1, st_size=told.st_size, st_mtime_ns=0, st_nlink=told.st_nlink)

    store = await store_at(MEMORY, MovedClock())
    for key in "ab":
        await put(store, key)
    monkeypatch.setattr(os, "fstat", alike)
    # The second was taken for the first, and removed as damaged.
    assert await kept(store, "a", "b") == "ab"
    assert store.usage().damaged == 0


async def found(store: EntryStore, key: str) -> bytes | None:
    checked = await store.find(FX_GRAPH, key, namespaces=["", "prod"])
    return None if checked is None else checked.content


async def test_what_was_found_is_looked_at_again_a_second_later_or_when_this_service_has_written_it(
    tmp_path: Path,
) -> None:
    clock = MovedClock()
    store, other = await store_at(tmp_path, clock), await store_at(tmp_path, clock)
    await put(store, "key", kilobytes=10, namespace="prod")
    assert await found(store, "key") == b"k" * 10_000
    await put(store, "key", kilobytes=20, namespace="prod")
    assert await found(store, "key") == b"k" * 20_000
    await put(other, "key", kilobytes=30, namespace="prod")
    clock.move(FRESH_SECONDS)
    assert await found(store, "key") == b"k" * 30_000
    await store.remove(FX_GRAPH, ["key"], namespace="prod")
    assert (await found(store, "key"), store.usage().entries) == (None, 0)


def test_bytes_that_are_remembered_are_bounded() -> None:
    known = CheckedEntries()
    for number in range(5):
        known.add((number,), CheckedEntry(entry=CacheEntry(), content=bytes(10_000_000), answer=bytes(10_000_000)))
        known.add((-1,), CheckedEntry(entry=CacheEntry(), content=None, answer=b""))
        assert known.find((0,)) is not None
    # Those that were asked for last, and at most 64 MiB of them.
    assert [number for number in range(-1, 5) if known.find((number,)) is not None] == [-1, 0, 3, 4]


@pytest.mark.parametrize("location", ["memory:", "folder"])
async def test_what_was_used_least_recently_goes_first(tmp_path: Path, location: str) -> None:
    clock = MovedClock()
    store = await store_at(location if location == "memory:" else tmp_path, clock, kilobytes=200)
    for key in "abcdefgh":
        await put(store, key, kilobytes=20)
        clock.move(RENEWAL_SECONDS)
    await kept(store, "a", "b")
    await put(store, "n", kilobytes=80)
    assert await kept(store, *"abcdefghn") == "abfghn"
    assert store.usage().size_bytes <= 200_000
    assert store.usage().evicted == 3


async def test_uses_outlive_the_process(tmp_path: Path) -> None:
    clock = MovedClock()
    store = await store_at(tmp_path, clock)
    for key in "abc":
        await put(store, key, kilobytes=30)
    clock.move(2 * RENEWAL_SECONDS)
    assert await kept(store, "a") == "a"
    again = await store_at(tmp_path, clock)
    await put(again, "n", kilobytes=50)
    assert await kept(again, *"abcn") == "an"


async def test_entries_that_nobody_uses_go_after_their_lifetime(tmp_path: Path) -> None:
    clock = MovedClock()
    store = await store_at(tmp_path, clock)
    await put(store, "a")
    await put(store, "b")
    clock.move(0.6 * DAY)
    await kept(store, "a")
    clock.move(0.6 * DAY)
    await put(store, "n")
    assert await kept(store, "a", "b", "n") == "an"


async def test_one_namespace_does_not_push_out_what_another_has(tmp_path: Path) -> None:
    clock = MovedClock()
    store = await store_at(tmp_path, clock)
    for key in "ab":
        await put(store, key, namespace="prod")
    for key in "cdefghijklm":
        clock.move(RENEWAL_SECONDS)
        await put(store, key, namespace="dev")
    assert await kept(store, "a", "b", namespace="prod") == "ab"


@pytest.mark.parametrize("stored", [0, 60])
async def test_what_one_namespace_has_on_its_way_leaves_others_their_room(tmp_path: Path, stored: int) -> None:
    store = await store_at(tmp_path, MovedClock())
    if stored:
        await put(store, "a", kilobytes=stored, namespace="dev")
    await store.reserve({"dev": 95_000}, namespace="dev")
    await store.reserve({"dev": 95_000, "prod": 20_000}, namespace="prod")
    with pytest.raises(StoreFull):
        await store.reserve({"dev": 95_001, "prod": 20_000}, namespace="dev")
    # A whole limit more than that would be a store that has none.
    with pytest.raises(StoreFull):
        await store.reserve({"dev": 181_000, "prod": 20_000}, namespace="prod")


async def test_what_one_namespace_has_written_counts_at_once(tmp_path: Path) -> None:
    """While others send as much as there may be at all, nobody fills the room of a third."""
    store, coming = await store_at(tmp_path, MovedClock()), {"dev": 95_000}
    for number in range(12):
        await put(store, f"{number}", namespace="prod", coming=coming)
    assert store.usage().size_bytes <= 50_000
    await store.reserve({**coming, "modest": 10_000}, namespace="modest")


async def test_writing_an_entry_anew_takes_no_further_room(tmp_path: Path) -> None:
    store = await store_at(tmp_path, MovedClock())
    for _ in range(3):
        await put(store, "a", kilobytes=20)
    assert store.usage().entries == 1
    assert store.usage().size_bytes < 21_000


def inode_of(folder: Path) -> int:
    (path,) = folder.glob("caches/entries/*/*/*")
    return path.stat().st_ino


async def test_what_is_named_by_its_content_is_left_there_when_it_is_written_again(tmp_path: Path) -> None:
    store = await store_at(tmp_path, MovedClock())
    inodes = []
    for _ in range(2):
        entry = describe(b"content", cache=TorchCache.TORCH_CACHE_MEGA_PART, key=digest_of(b"content"))
        async with store.staging(entry.digest) as blob:
            await blob.write(b"content")
            await store.put(entry, blob)
        inodes.append(inode_of(tmp_path))
    assert inodes[0] == inodes[1]
    async with store.reading(entry.cache, entry.key, namespaces=[""]) as (_, content):
        assert await content.read(0, content.size_bytes) == b"content"


def abandoned(folder: Path) -> Path:
    """A file as a service that was killed in the middle of an upload leaves it."""
    path = folder / CACHES / STAGING / f"{'ab' * 32}#1"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"half of an entry")
    return path


async def test_what_a_killed_service_had_received_is_not_served_and_goes(tmp_path: Path) -> None:
    path = abandoned(tmp_path)
    store = await store_at(tmp_path, MovedClock())
    assert store.usage().entries == 0
    assert not await asyncio.to_thread(path.exists)


async def test_entries_lie_in_a_bucket_as_well(s3: S3Server) -> None:
    location, clock = s3.location("entries"), MovedClock()
    store = await store_at(location, clock)
    for key in "abc":
        await put(store, key, kilobytes=30)
    await put(store, "a", kilobytes=20)
    clock.move(2 * RENEWAL_SECONDS)
    assert await kept(store, "a") == "a"
    again = await store_at(location, clock)
    await put(again, "n", kilobytes=60)
    assert await kept(again, *"abcn") == "an"


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("/srv/store", "/srv/store/caches"),
        ("store/", "store/caches"),
        ("memory:", "memory:"),
        ("s3://bucket", "s3://bucket/caches"),
        ("s3://bucket/farm/?endpoint=http://host:1/x", "s3://bucket/farm/caches?endpoint=http://host:1/x"),
    ],
)
def test_entries_lie_beside_artifacts(location: str, expected: str) -> None:
    assert caches_beside(location) == expected
