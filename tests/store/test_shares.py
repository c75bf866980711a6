"""Shares of a store of limited size: who loses what, who may write, and in any order of writes, uses and time."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from compilefarm.core.digests import digest_of
from compilefarm.core.errors import StoreFull
from compilefarm.store import collector
from compilefarm.store.collector import FORGOTTEN_SECONDS, Collected
from compilefarm.store.counting import SMALLEST_OBJECT_BYTES, counted_bytes
from compilefarm.store.layout import BLOBS, MANIFESTS, STAGING, blob_path, manifest_path, namespace_of
from compilefarm.store.limited import KEPT_SHARE, MOST_SHARE, RETRY_SECONDS, LimitedStore
from compilefarm.store.opening import open_store
from compilefarm.store.shares import share_of
from compilefarm.store.testing import MovedClock, sample_artifact, sample_key
from compilefarm.store.uses import LEASE_SECONDS

KB = 1000
LIMIT = 110 * KB
MANY = 100


def content_of(name: str, *, size_bytes: int = 10 * KB) -> bytes:
    return name.encode().ljust(size_bytes, b".")


async def opened(folder: Path, clock: MovedClock) -> LimitedStore:
    store = await open_store(str(folder), size_limit_bytes=LIMIT, now=clock)
    assert isinstance(store, LimitedStore)
    return store


async def upload(store: LimitedStore, content: bytes, *, namespace: str) -> None:
    digest = digest_of(content)
    async with store.staging(digest) as staged:
        await store.reserve({namespace: len(content)}, namespace=namespace)
        await staged.write(content)
        await store.put_staged(staged, digest=digest, namespace=namespace)
    await store.has_room()


async def fill(store: LimitedStore, *, namespace: str) -> list[str]:
    """Sends tensors until the store takes no more, and returns their digests."""
    sent: list[str] = []
    with suppress(StoreFull):
        for number in range(MANY):
            content = content_of(f"tensor {number} of {namespace}")
            await upload(store, content, namespace=namespace)
            sent.append(digest_of(content))
    assert len(sent) < MANY
    return sent


async def put(store: LimitedStore, *names: str, namespace: str, libraries: Sequence[bytes] = ()) -> None:
    for name in names:
        artifact = sample_artifact(sample_key(name), program=content_of(f"{namespace} {name}"), libraries=libraries)
        artifact.manifest.namespace = namespace
        await store.put_artifact(artifact.manifest, blobs=artifact.blobs)
        await store.has_room()


async def kept(store: LimitedStore, *names: str, namespace: str) -> list[str]:
    return [name for name in names if await store.find_manifest(sample_key(name), namespaces=[namespace]) is not None]


@pytest.fixture
def clock() -> MovedClock:
    return MovedClock()


@pytest.fixture
async def store(tmp_path: Path, clock: MovedClock) -> LimitedStore:
    return await opened(tmp_path, clock)


@pytest.mark.parametrize(
    ("sizes", "share"),
    [
        ({}, math.inf),
        ({"one": 90}, math.inf),
        ({"one": 200}, 100),
        ({"one": 60, "two": 60}, 50),
        ({"one": 90, "two": 20}, 80),
        ({"one": 50, "two": 90, "three": 10}, 45),
        # Those that hold nothing, or next to nothing, take next to nothing from a share.
        ({"one": 90, "two": 50, **{f"empty {number}": 0 for number in range(100)}}, 50),
        ({"one": 90, "two": 45, **{f"tiny {number}": 0.1 for number in range(100)}}, 45),
    ],
)
def test_a_share_is_what_each_may_have_so_that_all_fit(sizes: dict[str | None, int], share: float) -> None:
    assert share_of(sizes, limit_bytes=100) == pytest.approx(share)


async def test_tensors_that_are_kept_in_use_take_nothing_from_others(store: LimitedStore, clock: MovedClock) -> None:
    await put(store, "first", "second", namespace="prod")
    sent: list[str] = []
    for _ in range(4):
        clock.move(LEASE_SECONDS / 2)
        assert await store.find_missing(sent) == []
        sent += [digest for digest in await fill(store, namespace="greedy") if digest not in sent]
    assert len(sent) >= 5
    assert await kept(store, "first", "second", namespace="prod") == ["first", "second"]
    assert (await store.usage()).size_bytes <= LIMIT


async def test_artifacts_that_are_kept_in_use_take_nothing_from_others(store: LimitedStore, clock: MovedClock) -> None:
    await put(store, "first", "second", namespace="prod")
    names: list[str] = []
    for number in range(20):
        clock.move(LEASE_SECONDS / 3)
        assert await kept(store, *names, namespace="greedy") == names
        names.append(f"f{number}")
        await put(store, names[-1], namespace="greedy")
    # What is in use stays as well, and the store is above its limit by that.
    assert await kept(store, *names, namespace="greedy") == names
    assert await kept(store, "first", "second", namespace="prod") == ["first", "second"]


async def test_who_has_less_than_its_share_may_write_whatever_others_keep_in_use(
    store: LimitedStore, clock: MovedClock
) -> None:
    await put(store, "first", namespace="prod")
    clock.move(2 * LEASE_SECONDS)
    sent = await fill(store, namespace="greedy")
    tensors = [content_of(f"tensor {number}") for number in range(2)]
    for tensor in tensors:
        await upload(store, tensor, namespace="prod")
    await put(store, "second", namespace="prod")
    with pytest.raises(StoreFull, match=r"may hold 110000, the share of namespace 'greedy' is [0-9]+ of them"):
        await upload(store, content_of("one more"), namespace="greedy")
    assert await store.find_missing([*sent, *map(digest_of, tensors)]) == []
    assert await kept(store, "first", "second", namespace="prod") == ["first", "second"]
    # No more than its share, however: then its own goes that was not used.
    clock.move(LEASE_SECONDS / 2)
    assert await store.find_missing(sent) == []
    clock.move(2 / 3 * LEASE_SECONDS)
    names = [f"p{number}" for number in range(4)]
    await put(store, *names, namespace="prod")
    clock.move(RETRY_SECONDS)
    await put(store, "last", namespace="prod")
    assert await kept(store, "first", "second", *names, "last", namespace="prod") == [*names, "last"]
    assert await store.find_missing(sent) == []


async def test_uploads_of_however_many_fill_twice_the_limit_at_most(store: LimitedStore) -> None:
    # Each may have its share of what others keep in use: all of it, a half, a third, ...
    for number in range(16):
        await fill(store, namespace=f"team {number}")
    assert 1.5 * LIMIT < (await store.usage()).size_bytes <= MOST_SHARE * LIMIT
    with pytest.raises(StoreFull, match="may hold 110000, it holds more, and all of that is in use"):
        await upload(store, content_of("of one more"), namespace="one more")


async def test_a_tensor_that_is_sent_again_counts_once(store: LimitedStore) -> None:
    await fill(store, namespace="greedy")
    # As pods do that have missed it at the same time.
    for _ in range(20):
        await upload(store, content_of("of prod"), namespace="prod")


async def test_who_goes_away_while_room_is_made_takes_nothing_from_others(
    store: LimitedStore, clock: MovedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(store, "a", "b", "c", "d", namespace="prod")
    clock.move(2 * LEASE_SECONDS)
    reads, begun, goes_on = type(store._backend).list_area, asyncio.Event(), asyncio.Event()

    async def list_slowly(backend: Any, area: str) -> Any:
        begun.set()
        await goes_on.wait()
        return await reads(backend, area)

    monkeypatch.setattr(type(store._backend), "list_area", list_slowly)
    first, second = (
        asyncio.create_task(store.reserve({"prod": LIMIT // 2}, namespace="prod"), name=name) for name in ("1", "2")
    )
    await begun.wait()
    first.cancel()
    with suppress(asyncio.CancelledError):
        await first
    goes_on.set()
    await second
    assert (await store.usage()).size_bytes <= LIMIT // 2


async def test_who_is_alone_may_fill_a_store_and_gives_room_to_who_comes_later(
    store: LimitedStore, clock: MovedClock
) -> None:
    names = [f"f{number}" for number in range(6)]
    await put(store, *names, namespace="first")
    assert await kept(store, *names, namespace="first") == names
    clock.move(2 * LEASE_SECONDS)
    later = [f"s{number}" for number in range(3)]
    await put(store, *later, namespace="second")
    assert await kept(store, *later, namespace="second") == later
    assert await kept(store, *names, namespace="first") == names[2:]
    assert (await store.usage()).size_bytes <= LIMIT


async def test_a_store_that_is_full_can_be_filled_again(store: LimitedStore, clock: MovedClock) -> None:
    for namespace in ("first", "second", "first", ""):
        # Even what fills all of it, while its pieces come.
        await upload(store, content_of(f"large {namespace}", size_bytes=LIMIT), namespace=namespace)
        clock.move(2 * LEASE_SECONDS)
        assert len(await fill(store, namespace=namespace)) == LIMIT // (10 * KB)
        clock.move(2 * LEASE_SECONDS)


async def test_a_blob_counts_once_for_each_namespace(store: LimitedStore, clock: MovedClock) -> None:
    library = content_of("library", size_bytes=20 * KB)
    # Both name it: the first holds some 48 KB with it, and would hold 90 if it counted for each artifact.
    await put(store, "a", "b", namespace="prod", libraries=[library])
    clock.move(2 * LEASE_SECONDS)
    names = [f"f{number}" for number in range(6)]
    await put(store, *names, namespace="greedy")
    assert await kept(store, "a", "b", namespace="prod") == ["a", "b"]
    assert await kept(store, *names, namespace="greedy") == names


async def test_what_nobody_used_for_a_week_is_in_nobodys_share(store: LimitedStore, clock: MovedClock) -> None:
    for namespace in ("former", "left"):
        await put(store, "a", "b", namespace=namespace)
    clock.move(FORGOTTEN_SECONDS - LEASE_SECONDS)
    assert await kept(store, "a", "b", namespace="left") == ["a", "b"]
    clock.move(2 * LEASE_SECONDS)
    names = [f"p{number}" for number in range(5)]
    await put(store, *names, namespace="prod")
    assert await kept(store, *names, namespace="prod") == names
    assert await kept(store, "a", "b", namespace="former") == []
    assert await kept(store, "a", "b", namespace="left") == ["a", "b"]


async def test_who_relied_on_a_tensor_last_has_it(store: LimitedStore, clock: MovedClock) -> None:
    sent = await fill(store, namespace="prod")
    clock.move(LEASE_SECONDS / 2)
    assert await store.find_missing(sent, namespace="greedy") == []
    await upload(store, content_of("of prod"), namespace="prod")
    with pytest.raises(StoreFull):
        await upload(store, content_of("one more"), namespace="greedy")


async def test_tensors_that_an_artifact_leaves_behind_count_for_who_has_them(
    store: LimitedStore, clock: MovedClock
) -> None:
    library = content_of("library", size_bytes=40 * KB)
    await put(store, "a", namespace="greedy", libraries=[library])
    await put(store, "first", "second", namespace="prod")
    await upload(store, content_of("first", size_bytes=20 * KB), namespace="greedy")
    clock.move(2 * LEASE_SECONDS)
    # What is not in use makes room for the first of these, and an artifact for the second.
    await upload(store, content_of("second"), namespace="greedy")
    assert await store.find_missing([digest_of(library)]) == []
    await upload(store, content_of("third", size_bytes=20 * KB), namespace="greedy")
    assert await kept(store, "a", namespace="greedy") == []
    with pytest.raises(StoreFull):
        await upload(store, content_of("fourth", size_bytes=20 * KB), namespace="greedy")
    await upload(store, content_of("of prod", size_bytes=20 * KB), namespace="prod")
    assert await kept(store, "first", "second", namespace="prod") == ["first", "second"]


async def test_tensors_that_an_artifact_leaves_behind_take_nothing_yet_from_who_found_them(
    store: LimitedStore, clock: MovedClock
) -> None:
    libraries = [content_of(f"library {number}", size_bytes=20 * KB) for number in range(2)]
    await put(store, "a", namespace="greedy", libraries=libraries)
    await put(store, "first", namespace="dev")
    await put(store, "a", "b", "c", namespace="prod")
    clock.move(2 * LEASE_SECONDS)
    # It holds nothing by that while an artifact names them, and that one is the first to go.
    assert await store.find_missing([*map(digest_of, libraries)], namespace="dev") == []
    await put(store, "d", namespace="prod")
    assert await kept(store, "a", namespace="greedy") == []
    assert await kept(store, "first", namespace="dev") == ["first"]
    assert await kept(store, "a", "b", "c", "d", namespace="prod") == ["b", "c", "d"]


async def test_what_was_sent_before_a_restart_may_be_of_whoever_sends_more(tmp_path: Path, clock: MovedClock) -> None:
    store = await opened(tmp_path, clock)
    await put(store, "first", "second", namespace="prod")
    clock.move(2 * LEASE_SECONDS)
    sent = await fill(store, namespace="greedy")
    for _ in range(3):
        clock.move(RETRY_SECONDS)
        store = await opened(tmp_path, clock)
        assert await store.find_missing(sent) == []
        with pytest.raises(StoreFull):
            await upload(store, content_of("one more"), namespace="greedy")
    assert await kept(store, "first", "second", namespace="prod") == ["first", "second"]
    assert (await store.usage()).size_bytes <= LIMIT


async def test_of_too_many_tensors_it_is_forgotten_whose_they_are(
    store: LimitedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collector, "_MOST_HOLDERS", 1)
    await fill(store, namespace="greedy")
    # As after a restart, they may be its own.
    with pytest.raises(StoreFull):
        await upload(store, content_of("of prod"), namespace="prod")


@pytest.mark.parametrize(("owner", "left"), [("prod", ["first"]), ("", [])])
async def test_who_is_alone_after_a_restart_loses_nothing_but_where_there_are_no_namespaces(
    tmp_path: Path, clock: MovedClock, owner: str, left: list[str]
) -> None:
    store = await opened(tmp_path, clock)
    await put(store, "first", namespace=owner)
    clock.move(2 * LEASE_SECONDS)
    sent = await fill(store, namespace="greedy")
    store = await opened(tmp_path, clock)
    # Another gateway's callers do.
    assert await store.find_missing(sent) == []
    with suppress(StoreFull):
        await upload(store, content_of("new"), namespace=owner)
    assert await kept(store, "first", namespace=owner) == left


@pytest.mark.parametrize("namespace", ["", "prod"])
async def test_room_is_made_for_all_that_comes(store: LimitedStore, clock: MovedClock, namespace: str) -> None:
    await put(store, *(f"f{number}" for number in range(6)), namespace="")
    clock.move(2 * LEASE_SECONDS)
    # More than what is left free when room is made after a write.
    await upload(store, content_of("large", size_bytes=LIMIT // 2), namespace=namespace)
    assert (await store.usage()).size_bytes <= LIMIT


NAMESPACES = ["", "dev", "prod"]
CONTENTS = [content_of(f"{number}", size_bytes=(number % 4 + 1) * 5 * KB) for number in range(16)]
NAMES = st.integers(0, 5)
# A prime to 1 among sums of these: nothing is as old as a lease to the second.
PARTS_OF_LEASE = st.sampled_from([0.0301, 0.41, 2.2, 2.2, 1.01 * FORGOTTEN_SECONDS / LEASE_SECONDS])


class SharesMachine(RuleBasedStateMachine):
    """Who holds what is worked out from what was written, and held against what has gone after each write.

    Args:
        folder: of the store, empty.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self.clock = MovedClock()
        self.folder = folder
        self.store: LimitedStore = self.run(opened(folder, self.clock))
        self.named: dict[str, frozenset[str]] = {}
        self.sizes = {blob_path(digest_of(content)): counted_bytes(len(content)) for content in CONTENTS}
        # For whom blobs were sent or looked for, or had been named.
        self.owners: dict[str, str] = {}
        self.used: dict[str, float] = {}
        self.quiet_until = 0.0
        self.has_collected = False
        collector = self.store._collector
        collector.collect = self.noting(collector.collect)  # type: ignore[method-assign]

    def teardown(self) -> None:
        self.runner.close()

    def run(self, action: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(action)

    def noting(self, collect: Callable[..., Coroutine[Any, Any, Collected]]) -> Any:
        async def noted(**options: Any) -> Collected:
            self.has_collected = True
            return await collect(**options)

        return noted

    # What is there, and whose it is.

    def lying(self) -> set[str]:
        async def listed() -> set[str]:
            return {each.path for area in (BLOBS, MANIFESTS) async for each in self.store.shared.objects(area)}

        found: set[str] = self.run(listed())
        return found

    def use(self, *paths: str) -> None:
        self.used.update(dict.fromkeys(paths, self.clock()))

    def is_used(self, path: str, *, within_seconds: float = LEASE_SECONDS) -> bool:
        return self.clock() - self.used[path] < within_seconds

    def total(self, paths: Iterable[str]) -> int:
        return sum(self.sizes.get(path, SMALLEST_OBJECT_BYTES) for path in paths)

    def loose(self, lying: set[str]) -> set[str]:
        named = {blob for path in lying & self.named.keys() for blob in self.named[path]}
        return {path for path in lying if path in self.sizes and path not in named}

    def stale(self, lying: set[str]) -> set[str]:
        """What goes first."""
        return {path for path in self.loose(lying) if not self.is_used(path)}

    def holdings(self, lying: set[str], *, coming: Mapping[str, int]) -> Counter[str | None]:
        owned = {(namespace_of(path), path) for path in lying & self.named.keys()}
        owned |= {(namespace, blob) for namespace, path in owned for blob in self.named[path]}
        owned |= {(self.owners[path], path) for path in self.loose(lying)}
        holdings: Counter[str | None] = Counter(coming)
        for namespace, path in owned:
            holdings[namespace] += self.total([path])
        return holdings

    # What is done to it.

    @rule(number=st.integers(0, len(CONTENTS) - 1), namespace=st.sampled_from(NAMESPACES))
    def upload(self, number: int, namespace: str) -> None:
        content = CONTENTS[number]
        path, before, coming = blob_path(digest_of(content)), self.lying(), {namespace: len(content)}
        stale, is_quiet = self.stale(before), self.clock() < self.quiet_until
        is_in_use = path in before and self.is_used(path)
        try:
            self.run(upload(self.store, content, namespace=namespace))
        except StoreFull:
            lying = self.expect(before, stale=stale, coming=coming)
            assert path in before or path not in lying
            holdings = self.holdings(lying, coming=coming)
            is_above_all = self.total(lying) + len(content) > MOST_SHARE * LIMIT
            assert is_quiet or is_above_all or holdings[namespace] > share_of(holdings, limit_bytes=KEPT_SHARE * LIMIT)
            assert self.total(lying) + len(content) > LIMIT
        else:
            self.use(path)
            # Room is made before it comes: what stays there meanwhile counts as well.
            stayed = is_in_use or path in before - self.loose(self.lying())
            lying = self.expect(before, stale=stale, coming=coming, sent=frozenset() if stayed else frozenset({path}))
            self.owners[path] = namespace
            holdings = self.holdings(lying, coming={})
            # Who found tensors of others since room was made last has these only when it is made again.
            if self.total(lying) > LIMIT and not is_quiet:
                assert holdings[namespace] <= share_of(holdings, limit_bytes=KEPT_SHARE * LIMIT)
        assert not list(self.folder.glob(f"{STAGING}/*"))

    @rule(number=NAMES, namespace=st.sampled_from(NAMESPACES))
    def put_artifact(self, number: int, namespace: str) -> None:
        before, key = self.lying(), sample_key(f"{number}")
        random = Random(f"{number} {namespace}")
        program, *libraries = random.sample(CONTENTS, random.randint(1, 3))
        artifact = sample_artifact(key, program=program, libraries=libraries)
        artifact.manifest.namespace = namespace
        assert self.run(self.store.put_artifact(artifact.manifest, blobs=artifact.blobs)) == artifact.manifest
        self.run(self.store.has_room())
        path = manifest_path(key, variant=0, namespace=namespace)
        self.named[path] = frozenset(map(blob_path, artifact.blobs))
        self.use(path, *self.named[path])
        self.owners.update(dict.fromkeys(self.named[path], namespace))
        before |= {path, *self.named[path]}
        self.expect(before, stale=self.stale(before), coming={})

    @rule(number=NAMES, namespace=st.sampled_from(NAMESPACES))
    def find_manifest(self, number: int, namespace: str) -> None:
        path = manifest_path(sample_key(f"{number}"), variant=0, namespace=namespace)
        found = self.run(self.store.find_manifest(sample_key(f"{number}"), namespaces=[namespace]))
        assert (found is not None) == (path in self.lying())
        if found is not None:
            self.use(path)

    @rule(numbers=st.sets(st.integers(0, len(CONTENTS) - 1), max_size=8), namespace=st.sampled_from(NAMESPACES))
    def find_missing(self, numbers: set[int], namespace: str) -> None:
        digests = [digest_of(CONTENTS[number]) for number in numbers]
        paths = set(map(blob_path, digests))
        missing = self.run(self.store.find_missing(digests, namespace=namespace))
        found = paths & self.lying()
        assert set(map(blob_path, missing)) == paths - found
        self.use(*found)
        self.owners.update(dict.fromkeys(found, namespace))

    @rule(part=PARTS_OF_LEASE)
    def let_time_pass(self, part: float) -> None:
        self.clock.move(part * LEASE_SECONDS)

    # What has to hold.

    def expect(
        self, before: set[str], *, stale: set[str], coming: Mapping[str, int], sent: frozenset[str] = frozenset()
    ) -> set[str]:
        """After a write: nothing is gone that is in use, or within a share, and everything else is if the store is
        above its limit. Returns what is there.

        Args:
            before: what was there, with what was written.
            stale: what of it goes first.
            coming: what was asked for.
            sent: what of it has come once room had been made.
        """
        lying = self.lying()
        gone = before - lying
        assert not any(self.is_used(path) for path in gone)
        holdings = self.holdings(before - stale, coming=coming)
        share_bytes = share_of(holdings, limit_bytes=KEPT_SHARE * LIMIT)
        self.note_owners(lying, gone=gone)
        left = self.holdings(lying & (before - stale), coming=coming)
        lost = {path for path in gone & self.named.keys() if self.is_used(path, within_seconds=FORGOTTEN_SECONDS)}
        largest_bytes = max((self.total({path, *self.named[path]}) for path in gone & self.named.keys()), default=0)
        for namespace in map(namespace_of, lost):
            assert holdings[namespace] > share_bytes
            assert left[namespace] + largest_bytes > share_bytes
        full = self.total(lying & before - stale - sent) + sum(coming.values()) > LIMIT
        if full and self.clock() >= self.quiet_until:
            # What others left behind counts for who relied on it when room is made again.
            for path in (self.loose(lying) & before) - self.loose(before - stale):
                left[self.owners[path]] -= self.total([path])
            for path in lying & self.named.keys():
                assert self.is_used(path, within_seconds=FORGOTTEN_SECONDS)
                assert self.is_used(path) or left[namespace_of(path)] <= share_bytes
            self.quiet_until = self.clock() + RETRY_SECONDS
        return lying

    def note_owners(self, lying: set[str], *, gone: set[str]) -> None:
        """Blobs that are in use stay when their artifacts go: if nobody relied on them since room was made last, they
        are of whoever had them named last.
        """
        if self.has_collected:
            for path in sorted(gone & self.named.keys(), key=lambda path: -self.used[path]):
                for blob in self.named[path] & self.loose(lying):
                    self.owners.setdefault(blob, namespace_of(path))
            self.owners = {path: owner for path, owner in self.owners.items() if path in self.loose(lying)}
        self.has_collected = False


def test_in_any_order(tmp_path: Path) -> None:
    numbers = itertools.count()
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        lambda: SharesMachine(tmp_path / str(next(numbers))),
        settings=settings(
            max_examples=25,
            stateful_step_count=60,
            deadline=None,
            # To look for a shorter order takes many minutes.
            phases=[Phase.generate],
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
        ),
    )
