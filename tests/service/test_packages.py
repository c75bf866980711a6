"""Packages on the wire: a union of what pods publish, whole or not at all, for whoever may see them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from compilefarm.core.digests import digest_of
from compilefarm.core.packages import MAX_CONTENT_BYTES
from compilefarm.service.config import GatewayConfig
from compilefarm.service.testing import Calls, Refused, calling, serving
from compilefarm.service.testing.servers import FREE_PORT
from compilefarm.store import packages
from compilefarm.store.entries import EntryStore
from compilefarm.store.opening import open_caches
from compilefarm.v1.cache_service_pb2 import TorchCache
from compilefarm.v1.manifest_pb2 import Signature
from compilefarm.v1.package_pb2 import SignedPackage

KEY, OTHER_KEY = f"{'a' * 16}-{'b' * 64}", f"{'a' * 16}-{'c' * 64}"
MIB = 1024 * 1024


def package(content: bytes = b"content", *, name: str = "first", key: str = KEY) -> SignedPackage:
    signature = Signature(key_id="k" * 16, value=b"s" * 64)
    return SignedPackage(key=key, name=digest_of(name.encode()), content=content, signature=signature)


async def store_in(folder: Path, *, size_limit_bytes: int = 100 * MIB, read_only: bool = False) -> EntryStore:
    return await open_caches(str(folder), size_limit_bytes=size_limit_bytes, lifetime_seconds=3600, read_only=read_only)


def stored(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("caches/entries/package/*/*/*/*")) if path.is_file()]


@pytest.fixture
async def calls(tmp_path: Path) -> AsyncIterator[Calls]:
    async with serving(caches=await store_in(tmp_path)) as gateway, calling(gateway.address) as calls:
        yield calls


async def test_packages_of_a_key_are_a_union(calls: Calls) -> None:
    given = [package(f"{name}".encode(), name=name) for name in ("first", "second", "third")]
    assert [await calls.publish(each) for each in given] == [True] * 3
    await calls.publish(package(key=OTHER_KEY))
    found = await calls.find_packages(KEY)
    assert sorted(each.content for each in found) == [b"first", b"second", b"third"]
    first = next(each for each in found if each.content == b"first")
    assert (first.key, first.name, first.signature) == (KEY, given[0].name, given[0].signature)
    assert first.published_seconds > 0


async def test_what_many_publish_at_once_is_all_there(calls: Calls) -> None:
    given = [package(f"{number}".encode(), name=f"{number}") for number in range(60)]
    assert all(await asyncio.gather(*map(calls.publish, given)))
    assert {each.content for each in await calls.find_packages(KEY)} == {each.content for each in given}


async def test_the_first_of_those_who_publish_the_same_stays(calls: Calls) -> None:
    news = await asyncio.gather(*(calls.publish(package(f"{number}".encode())) for number in range(20)))
    assert news.count(True) >= 1
    (kept,) = await calls.find_packages(KEY)
    assert not await calls.publish(package(b"later"))
    assert await calls.find_packages(KEY) == [kept]


async def test_what_is_not_there_is_no_error(calls: Calls) -> None:
    assert await calls.find_packages(KEY) == []


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (package(key="key"), "no key of packages"),
        (package(key=f"../{KEY}"), "no key of packages"),
        (package(b""), "a package of 0 bytes"),
        (package(bytes(MAX_CONTENT_BYTES + 1)), "a package of 3145729 bytes"),
        (SignedPackage(key=KEY, name="../../first", content=b"a"), "digest"),
        (SignedPackage(key=KEY, name="0" * 64, content=b"a"), "without a signature"),
        (SignedPackage(key=KEY, name="0" * 64, content=b"a", signature=Signature(value=bytes(9000))), "at most 4096"),
    ],
    ids=["key", "path", "empty", "large", "name", "unsigned", "signature"],
)
async def test_what_can_be_no_package_is_refused(
    calls: Calls, tmp_path: Path, wrong: SignedPackage, message: str
) -> None:
    with pytest.raises(Refused, match=message) as refused:
        await calls.publish(wrong)
    assert (refused.value.status, refused.value.reason) == ("INVALID_ARGUMENT", "invalid_request")
    assert stored(tmp_path) == []


async def test_a_question_for_what_is_no_key_is_refused(calls: Calls) -> None:
    with pytest.raises(Refused, match="no key of packages"):
        await calls.find_packages("../../manifests")


def damage(path: Path, other: Path, how: str) -> None:
    content = path.read_bytes()
    changed = {
        "truncated": content[:-10],
        "edited": content[:-10] + b"!" + content[-9:],
        "emptied": b"",
        "moved": other.read_bytes(),
    }
    path.write_bytes(changed[how])


@pytest.mark.parametrize("how", ["truncated", "edited", "emptied", "moved"])
async def test_a_damaged_package_goes_and_can_be_published_again(calls: Calls, tmp_path: Path, how: str) -> None:
    await calls.publish(package(b"first" * 100))
    await calls.publish(package(b"second", name="second"))
    first, other = sorted(stored(tmp_path), key=lambda path: -path.stat().st_size)
    damage(first, other, how)
    assert [each.content for each in await calls.find_packages(KEY)] == [b"second"]
    assert await calls.publish(package(b"first"))
    assert {each.content for each in await calls.find_packages(KEY)} == {b"first", b"second"}


async def test_a_publisher_that_is_gone_in_the_middle_leaves_nothing(calls: Calls, tmp_path: Path) -> None:
    from compilefarm.v1.package_service_pb2 import PublishRequest

    for _ in range(10):
        call = calls.packages.Publish(PublishRequest(package=package(bytes(MIB))))
        call.cancel()
    found = await calls.find_packages(KEY)
    assert all(each.content == bytes(MIB) for each in found)
    assert await calls.publish(package(b"whole", name="whole"))
    assert b"whole" in [each.content for each in await calls.find_packages(KEY)]


async def test_a_farm_that_keeps_none_says_how_to_have_it_keep_some() -> None:
    async with serving() as gateway, calling(gateway.address) as calls:
        for act in (calls.find_packages(KEY), calls.publish(package())):
            with pytest.raises(Refused, match="--cache-size-limit") as refused:
                await act
            assert (refused.value.status, refused.value.reason) == ("FAILED_PRECONDITION", "no_caches")


async def test_a_farm_that_is_read_only_serves_packages_and_takes_none(tmp_path: Path) -> None:
    async with serving(caches=await store_in(tmp_path)) as gateway, calling(gateway.address) as calls:
        await calls.publish(package())
    caches, config = await store_in(tmp_path, read_only=True), replace(FREE_PORT, read_only=True)
    async with serving(caches=caches, config=config) as gateway, calling(gateway.address) as calls:
        assert len(await calls.find_packages(KEY)) == 1
        with pytest.raises(Refused, match="read-only"):
            await calls.publish(package(name="second"))


async def test_a_package_that_is_wrong_is_served_no_more_and_not_taken_again(calls: Calls) -> None:
    await calls.publish(package(b"first"))
    await calls.publish(package(b"second", name="second"))
    assert await calls.withdraw_package(package(b"first"))
    assert [each.content for each in await calls.find_packages(KEY)] == [b"second"]
    assert not await calls.withdraw_package(package(b"first"))
    assert not await calls.withdraw_package(package(b"second", key=OTHER_KEY))
    assert not await calls.publish(package(b"first"))
    assert not await calls.withdraw_package(package(name="third"))
    assert [each.content for each in await calls.find_packages(KEY)] == [b"second"]


async def test_who_often_says_that_packages_are_wrong_is_not_believed(calls: Calls) -> None:
    given = [package(f"{number}".encode(), name=f"{number}") for number in range(12)]
    for each in given:
        await calls.publish(each)
    assert [await calls.withdraw_package(each) for each in given] == [True] * 10 + [False] * 2
    assert len(await calls.find_packages(KEY)) == 2


async def test_packages_of_a_key_are_bounded(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "MOST_OF_KEY", 2)
    for name in ("first", "second"):
        await calls.publish(package(name=name))
    with pytest.raises(Refused, match="has 2 packages") as refused:
        await calls.publish(package(name="third"))
    assert refused.value.reason == "store_full"
    assert not await calls.publish(package(name="second"))
    assert await calls.publish(package(name="third", key=OTHER_KEY))


async def test_packages_take_of_the_room_of_caches(tmp_path: Path) -> None:
    caches = await store_in(tmp_path, size_limit_bytes=MIB)
    async with serving(caches=caches) as gateway, calling(gateway.address) as calls:
        await calls.put_entry(bytes(200_000), key="key")
        for number in range(20):
            await calls.publish(package(bytes(100_000), name=f"{number}"))
        assert caches.usage().size_bytes <= MIB
        assert 0 < len(await calls.find_packages(KEY)) < 20
        requests = {each.cache: each for each in (await calls.status()).caches.requests}
        assert (requests["package"].writes, requests["package"].hits) == (20, 1)


async def test_packages_are_no_entries_and_entries_no_packages(calls: Calls) -> None:
    await calls.publish(package())
    for cache in TorchCache.values()[1:]:
        with pytest.raises(Refused, match="NOT_FOUND"):
            await calls.get_entry(f"{KEY}/{package().name}", cache=cache)
    await calls.put_entry(b"entry", key=OTHER_KEY)
    assert await calls.find_packages(OTHER_KEY) == []


@pytest.fixture
def listed(tmp_path: Path) -> GatewayConfig:
    callers = {
        "prod": ("prod", '["compile", "publish"]'),
        "dev": ("dev", '"publish"'),
        "reader": ("dev", '["read", "package-read"]'),
        "nobody": ("dev", '["admin", "cache-write"]'),
    }
    text = 'namespaces = ["prod", "dev"]\n' + "".join(
        f'[[callers]]\nname = "{name}"\nrole = {role}\nnamespace = "{namespace}"\n'
        f'tokens = ["sha256:{digest_of(name.encode())}"]\n'
        for name, (namespace, role) in callers.items()
    )
    (tmp_path / "callers.toml").write_text(text)
    return GatewayConfig(listen="127.0.0.1:0", auth_file=str(tmp_path / "callers.toml"))


async def test_packages_are_served_to_their_namespace_and_to_those_that_are_trusted_less(
    tmp_path: Path, listed: GatewayConfig
) -> None:
    async with (
        serving(caches=await store_in(tmp_path), config=listed) as gateway,
        calling(gateway.address, token="prod") as prod,
        calling(gateway.address, token="dev") as dev,
        calling(gateway.address, token="reader") as reader,
    ):
        await dev.publish(package(b"of dev"))
        assert await prod.find_packages(KEY) == []
        # Nobody publishes into another namespace, or under another name.
        posed = package(b"posed", name="posed")
        posed.namespace, posed.publisher = "prod", "prod"
        await dev.publish(posed)
        assert await prod.find_packages(KEY) == []
        assert await prod.publish(package(b"of prod"))
        assert [each.content for each in await prod.find_packages(KEY)] == [b"of prod"]
        # Nor does anybody have those of another namespace withdrawn that may read them.
        assert not await reader.withdraw_package(package(b"of prod"))
        assert await reader.withdraw_package(package(b"of dev"))
        assert [each.content for each in await prod.find_packages(KEY)] == [b"of prod"]
        assert await dev.publish(package(b"of dev", name="another"))
        seen = await reader.find_packages(KEY)
        assert {(each.content, each.namespace, each.publisher) for each in seen} == {
            (b"of dev", "dev", ""), (b"posed", "dev", ""), (b"of prod", "prod", "")
        }  # fmt: skip


async def test_who_publishes_and_who_reads_have_roles_of_their_own(tmp_path: Path, listed: GatewayConfig) -> None:
    async with (
        serving(caches=await store_in(tmp_path), config=listed) as gateway,
        calling(gateway.address, token="reader") as reader,
        calling(gateway.address, token="nobody") as nobody,
    ):
        assert await reader.find_packages(KEY) == []
        with pytest.raises(Refused, match="needs 'publish'"):
            await reader.publish(package())
        for act in (nobody.find_packages(KEY), nobody.publish(package()), nobody.withdraw_package(package())):
            with pytest.raises(Refused, match="role 'admin, cache-write'") as refused:
                await act
            assert refused.value.status == "PERMISSION_DENIED"
