"""Entries of torch's own caches on the wire: whole or not at all, for whoever may see them."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compilefarm.core.cache_entries import describe
from compilefarm.core.digests import digest_of
from compilefarm.service.config import GatewayConfig
from compilefarm.service.testing import Calls, Refused, calling, serving
from compilefarm.service.testing.servers import FREE_PORT
from compilefarm.store.entries import EntryStore
from compilefarm.store.layout import STAGING
from compilefarm.store.opening import open_caches
from compilefarm.v1.cache_service_pb2 import GetRequest, PutRequest, TorchCache

FX_GRAPH, AUTOTUNE = TorchCache.TORCH_CACHE_FX_GRAPH, TorchCache.TORCH_CACHE_AUTOTUNE
LARGE = os.urandom(2_500_000)
MIB = 1024 * 1024


async def store_in(folder: Path, *, size_limit_bytes: int = 100 * MIB) -> EntryStore:
    return await open_caches(str(folder), size_limit_bytes=size_limit_bytes, lifetime_seconds=3600)


def staged(folder: Path) -> list[Path]:
    return list(folder.glob(f"**/{STAGING}/*"))


def damage(folder: Path, how: str) -> None:
    """Damages the larger of two stored entries."""
    smaller, larger = sorted(folder.glob("caches/entries/*/*/*"), key=lambda path: path.stat().st_size)
    content = larger.read_bytes()
    changed = {
        "truncated": content[:-100],
        "edited": content[:1000] + bytes([content[1000] ^ 1]) + content[1001:],
        "emptied": b"",
        "moved": smaller.read_bytes(),
    }
    larger.write_bytes(changed[how])


def entries(folder: Path) -> int:
    return len(list(folder.glob("caches/entries/*/*/*")))


@pytest.fixture
async def caches(tmp_path: Path) -> EntryStore:
    return await store_in(tmp_path)


@pytest.fixture
async def calls(caches: EntryStore) -> AsyncIterator[Calls]:
    async with serving(caches=caches) as gateway, calling(gateway.address) as calls:
        yield calls


@pytest.mark.parametrize("content", [b"", b"x", LARGE], ids=["empty", "small", "large"])
async def test_an_entry_comes_back_as_it_was_written(calls: Calls, content: bytes) -> None:
    await calls.put_entry(content, key="key")
    entry, read = await calls.get_entry("key")
    assert read == content
    assert (entry.key, entry.digest, entry.size_bytes) == ("key", digest_of(content), len(content))


async def test_caches_are_apart_and_a_later_entry_takes_the_place_of_an_earlier_one(calls: Calls) -> None:
    await calls.put_entry(b"first", key="key")
    await calls.put_entry(b"other", key="key", cache=AUTOTUNE)
    await calls.put_entry(b"second", key="key")
    assert (await calls.get_entry("key"))[1] == b"second"
    assert (await calls.get_entry("key", cache=AUTOTUNE))[1] == b"other"


async def test_an_entry_is_found_with_its_bytes_if_these_are_few(calls: Calls) -> None:
    await calls.put_entry(b"content", key="small")
    await calls.put_entry(LARGE, key="large")
    (small,), (large,) = [await calls.find_entries(key) for key in ("small", "large")]
    assert (small.content, small.entry.digest, small.entry.writer) == (b"content", digest_of(b"content"), "")
    assert (large.HasField("content"), large.entry.size_bytes) == (False, len(LARGE))
    assert await calls.find_entries("absent") == []


async def ahead(calls: Calls, key: str, *, ahead_bytes: int = 2 * MIB) -> str:
    """What comes with an entry, and it."""
    return "".join(found.entry.key for found in await calls.find_entries(key, ahead_bytes=ahead_bytes))


async def ask_in_order(address: str, keys: str) -> None:
    """Asks as one reader."""
    async with calling(address) as reader:
        for key in keys:
            await reader.find_entries(key)


async def test_what_earlier_readers_have_asked_for_next_comes_ahead(caches: EntryStore) -> None:
    async with serving(caches=caches) as gateway, calling(gateway.address) as calls:
        for key in "abcdefg":
            await calls.put_entry(bytes(10_000), key=key)
        await ask_in_order(gateway.address, "abcd")
        assert await ahead(calls, "a") == "abcd"
        async with calling(gateway.address) as another:
            assert await ahead(another, "b", ahead_bytes=15_000) == "bc"
            assert await ahead(another, "c", ahead_bytes=0) == "c"
        # Another program begins alike: what it asks for then comes behind.
        async with calling(gateway.address) as another:
            assert [await ahead(another, key) for key in "ag"] == ["abcd", "g"]
        async with calling(gateway.address) as another:
            assert await ahead(another, "a") == "abcdg"
        await calls.remove_entries(["b"])
        await calls.put_entry(b"anew", key="c")
        found = await calls.find_entries("a", ahead_bytes=2 * MIB)
        assert [(each.entry.key, len(each.content)) for each in found][:3] == [("a", 10_000), ("c", 4), ("d", 10_000)]


async def test_what_a_pod_has_missed_and_then_written_comes_ahead_for_the_first_reader(caches: EntryStore) -> None:
    async with serving(caches=caches) as gateway, calling(gateway.address) as calls:
        for key in "abxcd":
            assert await calls.find_entries(key) == []
        assert await ahead(calls, "a") == ""
        # Nobody writes x, and others are written in the order in which compiles end.
        for key in "dbac":
            await calls.put_entry(key.encode(), key=key)
        async with calling(gateway.address) as reader:
            assert await ahead(reader, "a") == "abcd"


async def test_what_is_asked_for_in_a_circle_and_what_is_large_or_changes_does_not_come_for_ever(
    caches: EntryStore,
) -> None:
    async with serving(caches=caches) as gateway, calling(gateway.address) as calls:
        for key in "abc":
            await calls.put_entry(bytes(900_000), key=key)
        await ask_in_order(gateway.address, "abca")
        assert await ahead(calls, "a", ahead_bytes=1 << 60) == "abc"[:3]
        await calls.put_entry(b"", key="job", cache=TorchCache.TORCH_CACHE_DYNAMO_PGO)
        async with calling(gateway.address) as reader:
            await reader.find_entries("job", cache=TorchCache.TORCH_CACHE_DYNAMO_PGO)
            await reader.find_entries("a")
        found = await calls.find_entries("job", cache=TorchCache.TORCH_CACHE_DYNAMO_PGO, ahead_bytes=MIB)
        assert [each.entry.key for each in found] == ["job"]


async def test_entries_are_removed_from_the_namespace_of_the_caller(caches: EntryStore, calls: Calls) -> None:
    await calls.put_entry(b"content", key="key")
    await calls.put_entry(b"other", key="other")
    assert await calls.find_entries("key") != []
    await calls.remove_entries(["key", "absent"])
    assert await calls.find_entries("key") == []
    assert await calls.find_missing_entries(["key", "other"]) == ["key"]
    assert caches.usage().entries == 1
    with pytest.raises(Refused, match="ask for at most 1000"):
        await calls.remove_entries(["key"] * 1001)


@pytest.mark.parametrize("cache", [0, 99, -1])
async def test_a_cache_that_there_is_not_is_refused(calls: Calls, cache: Any) -> None:
    for ask in (
        lambda: calls.get_entry("key", cache=cache),
        lambda: calls.find_entries("key", cache=cache),
        lambda: calls.list_entries(cache=cache),
        # Also when nothing is asked for in it.
        lambda: calls.find_missing_entries([], cache=cache),
        lambda: calls.remove_entries([], cache=cache),
    ):
        with pytest.raises(Refused, match=f"there is no cache {cache}"):
            await ask()


async def test_what_is_not_there_is_said_not_to_be(calls: Calls) -> None:
    with pytest.raises(Refused, match="cache fx_graph has no entry key") as refused:
        await calls.get_entry("key")
    assert (refused.value.status, refused.value.reason) == ("NOT_FOUND", "not_stored")


async def test_an_entry_is_no_artifact(calls: Calls) -> None:
    await calls.put_entry(LARGE, key="key")
    assert await calls.find_missing([digest_of(LARGE)]) == [digest_of(LARGE)]
    with pytest.raises(Refused, match="has no blob"):
        await calls.read(digest_of(LARGE))
    assert (await calls.status()).store.blobs == 0


ENTRY = describe(b"ab", cache=FX_GRAPH, key="key")


@pytest.mark.parametrize(
    ("pieces", "reason", "message"),
    [
        ([], "invalid_request", "the first piece describes the entry"),
        ([PutRequest(chunk=b"ab")], "invalid_request", "the first piece describes the entry"),
        ([PutRequest(entry=ENTRY), PutRequest(chunk=b"aB")], "digest_mismatch", "announced"),
        ([PutRequest(entry=ENTRY), PutRequest(chunk=b"a")], "digest_mismatch", "announced"),
        ([PutRequest(entry=ENTRY), PutRequest(chunk=b"abc")], "invalid_request", "more bytes came than the 2"),
        ([PutRequest(entry=ENTRY), PutRequest(entry=ENTRY)], "invalid_request", "each piece but the first"),
        ([PutRequest(entry=describe(b"ab", cache=FX_GRAPH, key=""))], "invalid_request", None),
        ([PutRequest(entry=describe(b"ab", cache=99, key="key"))], "invalid_request", "no cache 99"),  # type: ignore[arg-type]
        ([PutRequest(entry=describe(bytes(MIB + 1), cache=FX_GRAPH, key="key"))], "invalid_request", "1048577 bytes"),
    ],
    ids=["nothing", "no entry", "wrong", "cut off", "long", "two entries", "digest of a key", "new cache", "large"],
)
async def test_a_write_that_is_wrong_keeps_nothing(
    caches: EntryStore, tmp_path: Path, pieces: list[PutRequest], reason: str, message: str | None
) -> None:
    if message is None:
        pieces[0].entry.key = "not\nplain"
    config = replace(FREE_PORT, max_cache_entry_bytes=MIB)
    async with serving(caches=caches, config=config) as gateway, calling(gateway.address) as calls:
        with pytest.raises(Refused, match=message or "printable characters") as refused:
            await calls.put_pieces(pieces)
    assert (refused.value.status, refused.value.reason) == ("INVALID_ARGUMENT", reason)
    assert caches.usage().entries == 0
    assert staged(tmp_path) == []


async def test_a_writer_that_is_gone_in_the_middle_leaves_what_was_there(calls: Calls, tmp_path: Path) -> None:
    await calls.put_entry(b"earlier", key="key")
    call = calls.caches.Put()
    await call.write(PutRequest(entry=describe(LARGE, cache=FX_GRAPH, key="key")))
    await call.write(PutRequest(chunk=LARGE[:MIB]))
    while not staged(tmp_path):
        await calls.status()
    call.cancel()
    while staged(tmp_path):
        await calls.status()
    assert (await calls.get_entry("key"))[1] == b"earlier"


@pytest.mark.parametrize("how", ["truncated", "edited", "emptied", "moved"])
async def test_a_damaged_entry_is_a_miss_and_goes(caches: EntryStore, calls: Calls, tmp_path: Path, how: str) -> None:
    await calls.put_entry(LARGE, key="key")
    await calls.put_entry(b"other", key="other")
    damage(tmp_path, how)
    with pytest.raises(Refused, match="NOT_FOUND"):
        await calls.get_entry("key")
    assert entries(tmp_path) == 1
    assert caches.usage().damaged == 1
    assert (await calls.get_entry("other"))[1] == b"other"
    await calls.put_entry(LARGE, key="key")
    assert (await calls.get_entry("key"))[1] == LARGE


async def test_an_entry_for_which_there_can_be_no_room_is_refused_before_its_bytes_come(tmp_path: Path) -> None:
    caches = await store_in(tmp_path, size_limit_bytes=MIB)
    async with serving(caches=caches) as gateway, calling(gateway.address) as calls:
        await calls.put_entry(b"earlier", key="earlier")
        with pytest.raises(Refused, match="have --cache-size-limit raised") as refused:
            await calls.put_pieces([PutRequest(entry=describe(LARGE, cache=FX_GRAPH, key="key"))])
        assert (refused.value.status, refused.value.reason) == ("RESOURCE_EXHAUSTED", "store_full")
        assert (await calls.get_entry("earlier"))[1] == b"earlier"


async def test_a_farm_that_keeps_no_caches_says_how_to_have_it_keep_some() -> None:
    async with serving() as gateway, calling(gateway.address) as calls:
        for act in (
            calls.get_entry("key"),
            calls.put_entry(b"", key="key"),
            calls.list_entries(),
            calls.find_missing_entries(["key"]),
            calls.find_entries("key"),
            calls.remove_entries(["key"]),
        ):
            with pytest.raises(Refused, match="--cache-size-limit") as refused:
                await act
            assert (refused.value.status, refused.value.reason) == ("FAILED_PRECONDITION", "no_caches")


async def test_a_farm_that_is_read_only_serves_entries_and_takes_none(tmp_path: Path) -> None:
    async with serving(caches=await store_in(tmp_path)) as gateway, calling(gateway.address) as calls:
        await calls.put_entry(b"content", key="key")
    caches = await open_caches(str(tmp_path), size_limit_bytes=MIB, lifetime_seconds=3600, read_only=True)
    config = replace(FREE_PORT, read_only=True)
    async with serving(caches=caches, config=config) as gateway, calling(gateway.address) as calls:
        assert (await calls.get_entry("key"))[1] == b"content"
        for act in (calls.put_entry(b"other", key="key"), calls.remove_entries(["key"])):
            with pytest.raises(Refused, match="read-only"):
                await act


async def test_entries_are_listed_by_how_their_keys_begin_in_the_order_of_their_writing(calls: Calls) -> None:
    for number in range(230):
        await calls.put_entry(b"", key=f"job {number}")
    await calls.put_entry(b"content", key="other")
    await calls.put_entry(b"", key="job of another cache", cache=AUTOTUNE)
    assert [entry.key for entry in await calls.list_entries("job ")] == [f"job {number}" for number in range(230)]
    (entry,) = await calls.list_entries("oth")
    assert (entry.key, entry.digest, entry.size_bytes) == ("other", digest_of(b"content"), 7)
    assert len(await calls.list_entries()) == 231


async def test_a_damaged_entry_is_not_listed_and_others_are(calls: Calls, tmp_path: Path) -> None:
    await calls.put_entry(LARGE, key="key")
    await calls.put_entry(b"other", key="other")
    damage(tmp_path, "truncated")
    assert [entry.key for entry in await calls.list_entries()] == ["other"]


async def test_which_entries_are_missing(calls: Calls) -> None:
    await calls.put_entry(b"", key="there")
    assert await calls.find_missing_entries(["b", "there", "a"]) == ["b", "a"]
    assert await calls.find_missing_entries(["there"], cache=AUTOTUNE) == ["there"]
    with pytest.raises(Refused, match="ask for at most 1000"):
        await calls.find_missing_entries(["key"] * 1001)
    with pytest.raises(Refused, match="printable characters"):
        await calls.find_missing_entries(["new\nline"])


async def test_what_a_writer_asks_for_is_not_the_next_to_go(tmp_path: Path) -> None:
    caches = await store_in(tmp_path, size_limit_bytes=MIB)
    async with serving(caches=caches) as gateway, calling(gateway.address) as calls:
        await calls.put_entry(bytes(400_000), key="first")
        await calls.put_entry(bytes(400_000), key="second")
        assert await calls.find_missing_entries(["first"]) == []
        await calls.put_entry(bytes(400_000), key="third")
        assert await calls.find_missing_entries(["first", "second", "third"]) == ["second"]


async def test_entries_are_served_to_their_namespace_and_to_those_that_are_trusted_less(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "compilefarm.service.cache_service")
    listed = tmp_path / "callers.toml"
    listed.write_text(
        'namespaces = ["prod", "dev"]\n'
        + "".join(
            f'[[callers]]\nname = "{name}"\nrole = "cache-write"\nnamespace = "{name}"\n'
            f'tokens = ["sha256:{digest_of(name.encode())}"]\n'
            for name in ("prod", "dev")
        )
    )
    config = GatewayConfig(listen="127.0.0.1:0", auth_file=str(listed))
    async with (
        serving(caches=await store_in(tmp_path), config=config) as gateway,
        calling(gateway.address, token="prod") as prod,
        calling(gateway.address, token="dev") as dev,
    ):
        await dev.put_entry(b"of dev", key="key")
        with pytest.raises(Refused, match="NOT_FOUND"):
            await prod.get_entry("key")
        await prod.put_entry(b"of prod", key="key")
        await prod.put_entry(b"of prod", key="other")
        assert (await prod.get_entry("key"))[1] == b"of prod"
        entry, content = await dev.get_entry("key")
        assert (entry.namespace, entry.writer, content) == ("dev", "", b"of dev")
        assert (await dev.get_entry("other"))[1] == b"of prod"
        assert [(entry.namespace, entry.writer) for entry in await prod.list_entries()] == [("prod", "")] * 2
        assert [entry.namespace for entry in await dev.list_entries()] == ["dev", "prod", "prod"]
        await dev.put_entry(b"", key="of dev alone")
        assert await prod.find_missing_entries(["of dev alone", "other"]) == ["of dev alone"]
        assert await dev.find_missing_entries(["of dev alone", "other"]) == []
        told = [record.getMessage().rpartition(" has entry ")[2] for record in caplog.records]
        assert told == ["key of dev", "key of prod", "other of prod", "of dev alone of dev"]
        # What one asks for comes ahead for nobody who may see less, and nobody removes what is trusted more.
        for key in ("other", "of dev alone"):
            await dev.find_entries(key)
        assert [each.entry.key for each in await prod.find_entries("other", ahead_bytes=MIB)] == ["other"]
        await dev.remove_entries(["key", "other"])
        assert [each.content for each in await dev.find_entries("key")] == [b"of prod"]
        assert await prod.find_missing_entries(["key", "other"]) == []


async def test_bytes_on_their_way_are_bounded_for_each_caller(caches: EntryStore, tmp_path: Path) -> None:
    config = replace(FREE_PORT, max_upload_bytes_of_caller=MIB)
    async with serving(caches=caches, config=config) as gateway, calling(gateway.address) as calls:
        with pytest.raises(Refused, match="has 1048576 bytes on their way") as refused:
            await calls.put_entry(LARGE, key="key")
    assert refused.value.reason == "busy"
    assert caches.usage().entries == 0


async def test_a_reader_that_goes_away_leaves_its_place_to_others(calls: Calls) -> None:
    await calls.put_entry(LARGE, key="key")
    for _ in range(40):
        call = calls.caches.Get(GetRequest(cache=FX_GRAPH, key="key"))
        await anext(aiter(call))
        call.cancel()
    assert (await calls.get_entry("key"))[1] == LARGE
