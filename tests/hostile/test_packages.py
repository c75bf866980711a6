"""Who may publish packages keeps nobody else's from pods."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from compilefarm.core.digests import digest_of
from compilefarm.service.testing import Calls, calling, serving
from compilefarm.service.testing.servers import FREE_PORT
from compilefarm.store import packages
from compilefarm.store.opening import open_caches
from compilefarm.v1.manifest_pb2 import Signature
from compilefarm.v1.package_pb2 import SignedPackage

KEY = f"{'a' * 16}-{'b' * 64}"
MIB = 1024 * 1024


def package(content: bytes, *, name: str) -> SignedPackage:
    # A farm knows no publisher's key, and takes what a package says of who signed it.
    signature = Signature(key_id="k" * 16, value=b"s" * 64)
    return SignedPackage(key=KEY, name=digest_of(name.encode()), content=content, signature=signature)


@asynccontextmanager
async def publishers(folder: Path) -> AsyncIterator[tuple[Calls, Calls]]:
    """Two publishers of one namespace: greedy and modest."""
    (folder / "callers.toml").write_text(
        "".join(
            f'[[callers]]\nname = "{name}"\nrole = "publish"\ntokens = ["sha256:{digest_of(name.encode())}"]\n'
            for name in ("greedy", "modest")
        )
    )
    caches = await open_caches(str(folder), size_limit_bytes=MIB, lifetime_seconds=3600)
    config = replace(FREE_PORT, auth_file=str(folder / "callers.toml"))
    async with (
        serving(caches=caches, config=config) as gateway,
        calling(gateway.address, token="greedy") as greedy,
        calling(gateway.address, token="modest") as modest,
    ):
        yield greedy, modest


async def test_what_somebody_publishes_under_a_name_keeps_nobody_else_from_it(tmp_path: Path) -> None:
    # What a package is called follows from what it says to hold, which others can find out, too.
    async with publishers(tmp_path) as (greedy, modest):
        assert await greedy.publish(package(b"forged", name="name"))
        assert not await greedy.publish(package(b"forged anew", name="name"))
        assert await modest.publish(package(b"right", name="name"))
        assert {each.content for each in await modest.find_packages(KEY)} == {b"forged", b"right"}


async def test_what_the_service_says_of_a_package_is_not_taken_from_who_publishes_it(tmp_path: Path) -> None:
    said = package(b"content", name="name")
    said.namespace, said.publisher, said.withdrawn, said.published_seconds = "prod", "modest", "not served", 1e300
    async with publishers(tmp_path) as (greedy, modest):
        await greedy.publish(said)
        (found,) = await modest.find_packages(KEY)
        assert (found.namespace, found.publisher, found.withdrawn) == ("", "", "")
        assert found.published_seconds < 1e300
        # It is the one of greedy.
        assert await modest.publish(package(b"content", name="name"))


async def test_packages_of_a_name_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "MOST_OF_NAME", 1)
    async with publishers(tmp_path) as (greedy, modest):
        assert await greedy.publish(package(b"first", name="name"))
        assert not await modest.publish(package(b"second", name="name"))
        assert await modest.publish(package(b"third", name="other"))


async def test_who_publishes_many_has_no_place_of_others_and_comes_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "MOST_OF_KEY", 5)
    async with publishers(tmp_path) as (greedy, modest):
        for number in range(5):
            await greedy.publish(package(b"forged", name=f"{number}"))
        assert await modest.publish(package(b"right", name="right"))
        found = await modest.find_packages(KEY)
    assert len(found) == 6
    # A pod reads so many and no more.
    assert b"right" in [each.content for each in found[:2]]


async def test_what_comes_at_a_time_has_room_together(tmp_path: Path) -> None:
    caches = await open_caches(str(tmp_path), size_limit_bytes=MIB, lifetime_seconds=3600)
    async with serving(caches=caches) as gateway, calling(gateway.address) as calls:
        given = [package(bytes(200_000), name=f"{number}") for number in range(20)]
        await asyncio.gather(*map(calls.publish, given), return_exceptions=True)
        assert caches.usage().size_bytes <= MIB
        assert await calls.publish(package(bytes(200_000), name="later"))


async def test_what_is_said_of_packages_fills_no_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with publishers(tmp_path) as (greedy, _):
        for _ in range(5):
            assert not await greedy.withdraw_package(package(b"of nobody", name="name"))
        await greedy.publish(package(b"forged", name="name"))
        for _ in range(5):
            assert not await greedy.publish(package(b"forged", name="name"))
    told = [record.getMessage() for record in caplog.records if record.name.endswith("package_service")]
    assert [("withdrawn" in each or "nothing is done" in each, "has package" in each) for each in told] == [
        (True, False),
        (False, True),
    ]


async def test_who_publishes_many_at_a_time_leaves_turns_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each lists all of its key: two hundred at a time, of a key with five hundred, had others wait for 1.5 s.
    begun, go_on = list[str](), asyncio.Event()
    has_begun = {"greedy": asyncio.Event(), "modest": asyncio.Event()}

    async def held(_store: packages.PackageStore, package: SignedPackage) -> bool:
        begun.append(package.publisher)
        has_begun[package.publisher].set()
        await go_on.wait()
        return True

    monkeypatch.setattr(packages.PackageStore, "publish", held)
    async with publishers(tmp_path) as (greedy, modest):
        publishing = [asyncio.create_task(greedy.publish(package(b"one", name=f"{number}"))) for number in range(20)]
        await has_begun["greedy"].wait()
        publishing.append(asyncio.create_task(modest.publish(package(b"other", name="name"))))
        await has_begun["modest"].wait()
        assert begun.count("greedy") <= 2
        go_on.set()
        assert all(await asyncio.gather(*publishing))
