"""Entries of torch's caches: nobody pushes out those of others, or fills the farm, by entries that hold nothing."""

from __future__ import annotations

import asyncio
import gc
import threading
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO

import grpc.aio
import pytest

from compilefarm.core.cache_entries import describe
from compilefarm.core.digests import digest_of
from compilefarm.service import call_limits
from compilefarm.service.config import GatewayConfig
from compilefarm.service.testing import Calls, Refused, calling, serving
from compilefarm.store import entries, entry_collector, entry_records
from compilefarm.store.backend import StoredObject
from compilefarm.store.counting import CountingBackend
from compilefarm.store.entries import EntryStore
from compilefarm.store.entry_records import SMALLEST_ENTRY_BYTES
from compilefarm.store.files import digest_of_file
from compilefarm.store.opening import open_caches
from compilefarm.v1.cache_service_pb2 import CacheEntry, ListEntriesRequest, PutRequest, TorchCache
from compilefarm.v1.manifest_pb2 import Signature

MIB = 1024 * 1024
CACHE = TorchCache.TORCH_CACHE_FX_GRAPH


async def caches_in(folder: Path) -> EntryStore:
    return await open_caches(str(folder), size_limit_bytes=MIB, lifetime_seconds=3600)


def callers_in(folder: Path, *names: str) -> Path:
    """A list of callers, each with a namespace and a token of that name."""
    listed = folder / "callers.toml"
    listed.write_text(
        f"namespaces = {list(names)}\n"
        + "".join(
            f'[[callers]]\nname = "{name}"\nrole = "cache-write"\nnamespace = "{name}"\n'
            f'tokens = ["sha256:{digest_of(name.encode())}"]\n'
            for name in names
        )
    )
    return listed


async def announce(calls: Calls, content: bytes) -> None:
    """Describes an entry of which not one byte comes."""
    with pytest.raises(Refused, match="0 bytes came"):
        await calls.put_pieces([PutRequest(entry=describe(content, cache=CACHE, key="announced"))])


async def test_nothing_goes_for_an_entry_that_is_only_announced(tmp_path: Path) -> None:
    async with serving(caches=await caches_in(tmp_path)) as gateway, calling(gateway.address) as calls:
        await calls.put_entry(bytes(MIB // 2), key="earlier")
        await announce(calls, bytes(MIB))
        assert (await calls.get_entry("earlier"))[1] == bytes(MIB // 2)


@pytest.mark.parametrize(("room_bytes", "has_content"), [(15_000, True), (8_000, False)])
async def test_entries_on_their_way_to_a_reader_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room_bytes: int, has_content: bool
) -> None:
    """gRPC holds what a reader does not take."""
    monkeypatch.setattr(call_limits, "ANSWERED_BYTES_OF_ACCOUNT", 2 * room_bytes)
    async with serving(caches=await caches_in(tmp_path)) as gateway, calling(gateway.address) as calls:
        await calls.put_entry(bytes(10_000), key="key")
        for _ in range(3):
            (found,) = await calls.find_entries("key")
            assert found.HasField("content") == has_content
        assert (await calls.get_entry("key"))[1] == bytes(10_000)


async def test_calls_of_readers_end_when_they_are_answered(tmp_path: Path) -> None:
    # One that stays until Python looks for circles is one of the 1024 streams that its connection may have.
    async with serving(caches=await caches_in(tmp_path)) as gateway, calling(gateway.address) as calls:
        await calls.put_entry(bytes(10_000), key="key")
        gc.disable()
        try:
            before = _count_calls()
            for _ in range(5):
                assert await calls.find_entries("key")
                assert not await calls.find_entries("absent")
                await calls.get_entry("key")
            # The last may be with the task that answers it.
            assert _count_calls() <= before + 1
        finally:
            gc.enable()


def _count_calls() -> int:
    """How many calls gRPC has in memory."""
    return sum(type(each).__name__ == "_ServicerContext" for each in gc.get_objects())


async def test_bytes_that_come_push_out_nothing_of_a_namespace_within_its_share(tmp_path: Path) -> None:
    config = GatewayConfig(listen="127.0.0.1:0", auth_file=str(callers_in(tmp_path, "prod", "dev")))
    async with (
        serving(caches=await caches_in(tmp_path), config=config) as gateway,
        calling(gateway.address, token="prod") as prod,
        calling(gateway.address, token="dev") as dev,
    ):
        await prod.put_entry(bytes(2 * MIB // 5), key="earlier")
        await dev.put_entry(bytes(MIB // 5), key="of dev")
        # None of it is kept: it is not what was announced.
        pieces = [PutRequest(entry=describe(bytes(MIB), cache=CACHE, key="key"))]
        pieces += [PutRequest(chunk=b"." * (MIB // 8))] * 8
        with pytest.raises(Refused, match="each namespace keeps its share") as refused:
            await dev.put_pieces(pieces)
        assert refused.value.reason == "store_full"
        assert (await prod.get_entry("earlier"))[1] == bytes(2 * MIB // 5)
        with pytest.raises(Refused, match="NOT_FOUND"):
            await dev.get_entry("of dev")
        await dev.put_entry(bytes(MIB // 2), key="fits")
        assert (await prod.get_entry("earlier"))[1] == bytes(2 * MIB // 5)


async def test_namespaces_that_hold_next_to_nothing_take_nothing_from_the_share_of_another(tmp_path: Path) -> None:
    small = [f"small-{number}" for number in range(8)]
    config = GatewayConfig(listen="127.0.0.1:0", auth_file=str(callers_in(tmp_path, "prod", "greedy", *small)))
    async with (
        serving(caches=await caches_in(tmp_path), config=config) as gateway,
        calling(gateway.address, token="prod") as prod,
        calling(gateway.address, token="greedy") as greedy,
    ):
        await prod.put_entry(bytes(MIB // 5), key="earlier")
        for name in small:
            async with calling(gateway.address, token=name) as calls:
                await calls.put_entry(b"", key="key")
        for number in range(20):
            await greedy.put_entry(bytes(MIB // 10), key=f"key {number}")
        assert (await prod.get_entry("earlier"))[1] == bytes(MIB // 5)


async def test_entries_without_bytes_count_for_the_room_that_they_take(tmp_path: Path) -> None:
    caches = await caches_in(tmp_path)
    async with serving(caches=caches) as gateway, calling(gateway.address) as calls:
        for number in range(MIB // SMALLEST_ENTRY_BYTES + 20):
            await calls.put_entry(b"", key=f"key {number}")
    assert caches.usage().evicted >= 20
    assert caches.usage().entries <= MIB // SMALLEST_ENTRY_BYTES


async def test_others_are_answered_while_it_is_chosen_which_entries_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of ten gigabytes there may be 650,000 entries, which took two seconds to sort.
    begun, answered = threading.Event(), threading.Event()
    in_time: list[bool] = []

    def choose(*_: object, **__: object) -> list[StoredObject]:
        begun.set()
        in_time.append(answered.wait(10))
        return []

    monkeypatch.setattr(entry_collector, "_least_recent", choose)
    async with serving(caches=await caches_in(tmp_path)) as gateway, calling(gateway.address) as calls:
        writing = asyncio.create_task(calls.put_entry(b"content", key="key"))
        assert await asyncio.to_thread(begun.wait, 10)
        await calls.status()
        answered.set()
        await writing
    assert in_time == [True]


async def test_a_listing_holds_no_more_than_it_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Of 100,000 entries one took 0.1 s in which nobody else was answered, and each caller may have several at a time.
    async def objects(_backend: object, folder: str) -> AsyncIterator[StoredObject]:
        for number in range(20_000):
            yield StoredObject(path=f"{folder}/{number:064}/ns", size_bytes=1, modified_seconds=number, tag="")

    caches = await caches_in(tmp_path)
    monkeypatch.setattr(entries, "MOST_LISTED", 10)
    monkeypatch.setattr(CountingBackend, "objects", objects)
    tracemalloc.start()
    assert await caches.list_descriptions(CACHE, key_prefix="", namespaces=["ns"]) == []
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most_bytes < 500_000


async def test_a_description_holds_no_more_than_it_says(tmp_path: Path) -> None:
    caches = await caches_in(tmp_path)
    signed = CacheEntry(signature=Signature(key_id="key", value=bytes(100_000)))
    signed.MergeFrom(describe(b"", cache=CACHE, key="key"))
    async with serving(caches=caches) as gateway, calling(gateway.address) as calls:
        with pytest.raises(Refused, match="description of a cache entry") as refused:
            await calls.put_pieces([PutRequest(entry=signed)])
    assert refused.value.status == "INVALID_ARGUMENT"
    assert caches.usage().entries == 0


async def test_an_entry_that_is_asked_for_again_and_again_is_compared_with_its_digest_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[float] = []

    def compare(file: IO[bytes], *, limit_bytes: float) -> tuple[str, int]:
        compared.append(limit_bytes)
        return digest_of_file(file, limit_bytes=limit_bytes)

    monkeypatch.setattr(entry_records, "digest_of_file", compare)
    async with serving(caches=await caches_in(tmp_path)) as gateway, calling(gateway.address) as calls:
        await calls.put_entry(b"first", key="key")
        for _ in range(5):
            assert (await calls.get_entry("key"))[1] == b"first"
        await calls.put_entry(b"another", key="key")
        assert (await calls.get_entry("key"))[1] == b"another"
    assert compared == [len(b"first"), len(b"another")]


async def test_who_takes_nothing_of_a_list_has_no_further_one_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each list of ten thousand entries is tens of megabytes, which was held for a minute by who read none of it.
    caches = await caches_in(tmp_path)
    listed = list[str]()

    async def list_descriptions(*_: object, **__: object) -> list[CacheEntry]:
        listed.append("once more")
        return [describe(b"", cache=CACHE, key="k" * 1000) for _ in range(1000)]

    monkeypatch.setattr(caches, "list_descriptions", list_descriptions)
    config = GatewayConfig(listen="127.0.0.1:0", max_transfers_of_caller=1)
    options = [("grpc.http2.bdp_probe", 0)]
    async with (
        serving(caches=caches, config=config) as gateway,
        grpc.aio.insecure_channel(gateway.address, options=options) as channel,
        calling(gateway.address) as calls,
    ):
        lists = channel.unary_stream("/compilefarm.v1.CacheService/ListEntries")
        request = ListEntriesRequest(cache=CACHE).SerializeToString()
        slow = [lists(request) for _ in range(3)]
        while not listed:
            await calls.status()
        for _ in range(50):
            await calls.status()
        assert len(listed) == 1
        for each in slow:
            each.cancel()
