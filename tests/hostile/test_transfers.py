"""Blobs: nobody fills memory, disk or places with them."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from compilefarm.core.digests import digest_of
from compilefarm.core.errors import MissingBlobs, NotWanted, StoreFull
from compilefarm.core.held_tensors import MAX_BYTES, MAX_BYTES_OF_GRAPH
from compilefarm.service import wanted
from compilefarm.service.accounts import account_of_peer
from compilefarm.service.callers import Caller
from compilefarm.service.config import GatewayConfig
from compilefarm.service.fair_semaphore import FairSemaphore
from compilefarm.service.pace import IDLE_SECONDS
from compilefarm.service.quotas import Quotas
from compilefarm.service.testing import Calls, ManualClock, Refused, calling, sample_job, serving
from compilefarm.service.testing.servers import FREE_PORT, serving_in_thread
from compilefarm.service.wanted import WantedBlobs
from compilefarm.store.backend import staging_of_user
from compilefarm.store.counting import SMALLEST_OBJECT_BYTES
from compilefarm.store.layout import STAGING
from compilefarm.store.opening import open_caches, open_store
from compilefarm.store.testing import MovedClock, sample_artifact, sample_key
from compilefarm.store.uses import LEASE_SECONDS
from compilefarm.v1.blob_service_pb2 import ReadRequest, WriteRequest
from compilefarm.v1.cache_service_pb2 import GetRequest, TorchCache
from tests.hostile.callers import asking, farm

MIB = 1024 * 1024
BLOB = os.urandom(MIB)
WHOLE = os.urandom(48 * MIB)
BOTH = pytest.mark.parametrize("asks", [True, False], ids=["auth", "open"])


def names(asks: bool, *others: str) -> dict[str, str]:
    return dict.fromkeys(("one", *others), "compile") if asks else {"": "admin"}


def staged(folder: Path) -> list[Path]:
    return list((folder / "store").glob(f"{STAGING}/*"))


async def begin(calls: Calls, content: bytes, *, pieces: int = 1):  # type: ignore[no-untyped-def]
    """A write of which so many MiB have been sent, and no end."""
    digest = digest_of(content)
    await calls.miss(digest)
    call = calls.blobs.Write()
    for number in range(pieces):
        chunk = content[number * MIB : (number + 1) * MIB]
        await call.write(WriteRequest(digest=digest, offset_bytes=number * MIB, chunk=chunk))
    return call


async def arrived(calls: Calls, folder: Path, size_bytes: int) -> None:
    """Asks for the state of the farm until so much lies in its folder."""
    while sum(path.stat().st_size for path in staged(folder)) != size_bytes:
        await calls.status()


def test_of_addresses_without_an_end_the_latest_may_send_what_they_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    digests = [digest_of(bytes([number])) for number in range(10)]
    blobs = WantedBlobs()

    def miss(account: str, *missed: str) -> None:
        blobs.refused(sample_job(constants=missed), caller=Caller(account=account), error=MissingBlobs("some"))

    def may_send(account: str, digest: str) -> bool:
        try:
            blobs.require_wanted(digest, account=account)
        except NotWanted:
            return False
        return True

    monkeypatch.setattr(wanted, "_MOST_ACCOUNTS", 3)
    for number in range(5):
        miss(f"10.0.0.{number}", digests[0])
    assert [may_send(f"10.0.0.{number}", digests[0]) for number in range(5)] == [False, False, True, True, True]
    # As before, all of them together have so many, and who asked last keeps them.
    monkeypatch.setattr(wanted, "_MOST_DIGESTS_OF_ALL", 6)
    miss("10.0.0.2", *digests[:5])
    assert [may_send(f"10.0.0.{number}", digests[0]) for number in range(5)] == [False, False, True, False, True]


async def test_the_same_bytes_count_for_each_tensor_that_a_graph_holds(tmp_path: Path) -> None:
    async with farm(tmp_path, names(True)) as callers:
        calls = next(iter(callers.values()))
        digest = await calls.write(os.urandom(MAX_BYTES))
        assert (await calls.finish(sample_job(constants=[digest] * 4))).HasField("manifest")
        with pytest.raises(Refused, match="tensors of more than the 67108864 bytes"):
            await calls.finish(sample_job(constants=[digest] * (MAX_BYTES_OF_GRAPH // MAX_BYTES + 1)))


async def test_uploads_that_a_service_ends_leave_no_files(tmp_path: Path) -> None:
    store = await open_store(str(tmp_path / "store"))
    with ExitStack() as service:
        address = service.enter_context(serving_in_thread(store=store))
        async with calling(address) as calls:
            # More than the service has threads, of callers who stay.
            _uploads = [await begin(calls, WHOLE) for _ in range(30)]
            await arrived(calls, tmp_path, 30 * MIB)
            service.close()
            assert staged(tmp_path) == []


@contextmanager
def room_in_a_file_for(size_bytes: int) -> Iterator[None]:
    """No file of this process may become larger meanwhile; to the writer it is as with a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_uploads_for_which_there_is_no_room_leave_no_files(tmp_path: Path) -> None:
    store, piece = await open_store(str(tmp_path / "store")), WHOLE[: 4 * 1024]
    digest = digest_of(piece * 17)
    async with serving(store=store) as gateway, calling(gateway.address) as calls:
        await calls.miss(digest)
        # Pieces that a file with a buffer would keep, and try to write once more when it is closed.
        pieces = [WriteRequest(digest=digest, offset_bytes=number * len(piece), chunk=piece) for number in range(17)]
        with room_in_a_file_for(16 * len(piece)), pytest.raises(Refused, match="make room there"):
            await calls.write_pieces(pieces)
        assert staged(tmp_path) == []
        await calls.write_pieces(pieces)
        assert await calls.read(digest) == piece * 17


@BOTH
async def test_what_is_sent_lies_on_disk_and_not_in_memory(tmp_path: Path, asks: bool) -> None:
    store = await open_store(str(tmp_path / "store"), cache_bytes=8 * MIB)
    async with farm(tmp_path, names(asks), store=store) as callers:
        calls = next(iter(callers.values()))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        digest = await calls.write(WHOLE)
        # Four readers that take one piece each and then no more.
        reads = [calls.blobs.Read(ReadRequest(digest=digest)) for _ in range(4)]
        for read in reads:
            await anext(aiter(read))
        grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        for read in reads:
            read.cancel()
        assert await calls.read(digest) == WHOLE
    # The client of this test is in this process and holds what it sends in pieces, too.
    assert grown_kib < 120 * 1024


async def test_entries_of_caches_lie_on_disk_and_not_in_memory(tmp_path: Path) -> None:
    caches = await open_caches(str(tmp_path), size_limit_bytes=200 * MIB, lifetime_seconds=3600)
    async with serving(caches=caches) as gateway, calling(gateway.address) as calls:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        await calls.put_entry(WHOLE, key="key")
        # Four readers that take the description and one piece each, and then no more.
        reads = [calls.caches.Get(GetRequest(cache=TorchCache.TORCH_CACHE_FX_GRAPH, key="key")) for _ in range(4)]
        for read in reads:
            answers = aiter(read)
            await anext(answers)
            await anext(answers)
        grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        for read in reads:
            read.cancel()
        assert (await calls.get_entry("key"))[1] == WHOLE
    # The client of this test is in this process and holds what it sends in pieces, too.
    assert grown_kib < 120 * 1024


@BOTH
async def test_what_no_compile_missed_is_not_taken(tmp_path: Path, asks: bool) -> None:
    async with farm(tmp_path, names(asks)) as callers:
        calls = next(iter(callers.values()))
        with pytest.raises(Refused, match="ask for the compile first") as refused:
            await calls.write_pieces([WriteRequest(digest=digest_of(BLOB), chunk=BLOB)])
        assert (refused.value.status, refused.value.reason) == ("FAILED_PRECONDITION", "not_wanted")
        assert (await calls.status()).store.blobs == 0
        await calls.miss(digest_of(BLOB))
        assert await calls.write_pieces([WriteRequest(digest=digest_of(BLOB), chunk=BLOB)]) == MIB


async def test_what_another_caller_missed_is_not_taken(tmp_path: Path) -> None:
    async with farm(tmp_path, names(True, "two")) as callers:
        await callers["one"].miss(digest_of(BLOB))
        with pytest.raises(Refused, match="no request for a compile of this caller"):
            await callers["two"].write_pieces([WriteRequest(digest=digest_of(BLOB), chunk=BLOB)])


@BOTH
async def test_bytes_on_their_way_are_bounded_and_cleaned_up(tmp_path: Path, asks: bool) -> None:
    store = await open_store(str(tmp_path / "store"))
    config = replace(FREE_PORT, max_upload_bytes_of_caller=3 * MIB)
    async with farm(tmp_path, names(asks), store=store, config=config) as callers:
        calls = next(iter(callers.values()))
        first = await begin(calls, WHOLE, pieces=3)
        await arrived(calls, tmp_path, 3 * MIB)
        with pytest.raises(Refused, match="has 3145728 bytes on their way") as refused:
            await calls.write(BLOB)
        assert refused.value.reason == "busy"
        first.cancel()
        await arrived(calls, tmp_path, 0)
        await calls.write(BLOB)
        assert staged(tmp_path) == []


async def test_what_one_caller_sends_leaves_room_for_another(tmp_path: Path) -> None:
    store = await open_store(str(tmp_path / "store"))
    config = replace(FREE_PORT, max_upload_bytes_of_caller=2 * MIB, max_upload_bytes=3 * MIB)
    async with farm(tmp_path, names(True, "two", "three"), store=store, config=config) as callers:
        await begin(callers["one"], WHOLE, pieces=2)
        await arrived(callers["one"], tmp_path, 2 * MIB)
        await callers["two"].write(BLOB)
        await begin(callers["two"], WHOLE)
        await arrived(callers["two"], tmp_path, 3 * MIB)
        with pytest.raises(Refused, match="all callers together"):
            await callers["three"].write(BLOB[:-1])


@BOTH
async def test_a_sender_that_falls_silent_is_ended(tmp_path: Path, asks: bool) -> None:
    clock = ManualClock()
    store = await open_store(str(tmp_path / "store"))
    async with farm(tmp_path, names(asks), store=store, clock=clock) as callers:
        calls = next(iter(callers.values()))
        call = await begin(calls, WHOLE)
        await arrived(calls, tmp_path, MIB)
        clock.advance(IDLE_SECONDS + 3)
        while not call.done():
            clock.advance(2)
            await calls.status()
        assert (await call.code()).name == "ABORTED"
        assert "try again" in await call.details()
        assert staged(tmp_path) == []


@BOTH
async def test_a_reader_that_takes_nothing_loses_its_place(tmp_path: Path, asks: bool) -> None:
    clock = ManualClock()
    config = replace(FREE_PORT, max_transfers_of_caller=1)
    store = await open_store(str(tmp_path / "store"))
    if asks:
        config = asking(tmp_path, names(asks), config=config)
    token = next(iter(names(asks)))
    async with (
        serving(store=store, clock=clock, config=config) as gateway,
        calling(gateway.address, token=token) as slow,
        # The connection of the slow one is ended.
        calling(gateway.address, token=token) as calls,
    ):
        digest = await calls.write(WHOLE)
        read = slow.blobs.Read(ReadRequest(digest=digest))
        await anext(aiter(read))
        waiting = asyncio.create_task(calls.read(digest))
        while not waiting.done():
            # As long as the slow one has its place, the other gets nothing. No faster than the other reads after that.
            clock.advance(2.0)
            await asyncio.wait([waiting], timeout=0.05)
        assert await waiting == WHOLE


async def test_blobs_that_nobody_refers_to_go_first_and_uploads_beyond_the_limit_are_refused(tmp_path: Path) -> None:
    moved = MovedClock()
    store = await open_store(str(tmp_path / "store"), size_limit_bytes=4 * MIB, now=moved)
    artifact = sample_artifact(sample_key("job"), program=os.urandom(MIB))
    await store.put_artifact(artifact.manifest, blobs=artifact.blobs)
    async with serving(store=store) as gateway, calling(gateway.address) as calls:
        for _ in range(2):
            await calls.write(os.urandom(MIB))
        # Whoever has just sent something may still name it.
        with pytest.raises(Refused, match="--store-size-limit") as refused:
            await calls.write(os.urandom(MIB + 1))
        assert (refused.value.status, refused.value.reason) == ("RESOURCE_EXHAUSTED", "store_full")
        moved.move(LEASE_SECONDS + 61)
        await calls.write(os.urandom(MIB + 1))
        assert (await calls.status()).store.artifacts == 1


async def test_pieces_that_carry_nothing_are_not_taken() -> None:
    digest = digest_of(BLOB)
    async with serving() as gateway, calling(gateway.address) as calls:
        for content in (b"", b"x"):
            await calls.miss(digest)
            pieces = [
                WriteRequest(digest=digest, chunk=content, offset_bytes=number * len(content)) for number in range(3)
            ]
            with pytest.raises(Refused, match="only the last piece"):
                await calls.write_pieces(pieces)


async def test_no_blob_is_taken_that_no_graph_can_hold() -> None:
    config = GatewayConfig(listen="127.0.0.1:0")
    async with serving(config=config) as gateway, calling(gateway.address) as calls:
        await calls.write(BLOB[:MAX_BYTES])
        with pytest.raises(Refused, match=f"larger than the {MAX_BYTES} bytes"):
            await calls.write(BLOB[: MAX_BYTES + 1])


async def test_a_tenant_sends_no_more_than_its_quota_within_the_hour() -> None:
    clock = ManualClock()
    config = replace(FREE_PORT, max_tenant_upload_bytes=2 * MIB)
    async with serving(config=config, clock=clock) as gateway, calling(gateway.address) as calls:
        for _ in range(2):
            await calls.write(os.urandom(MIB))
        with pytest.raises(Refused, match="--tenant-upload-limit") as refused:
            await calls.write(b"one more")
        assert refused.value.reason == "store_full"
        clock.advance(LEASE_SECONDS + 400)
        await calls.write(os.urandom(MIB))


async def test_small_tensors_count_for_the_quota_as_in_the_store() -> None:
    config = replace(FREE_PORT, max_tenant_upload_bytes=2 * SMALLEST_OBJECT_BYTES)
    async with serving(config=config) as gateway, calling(gateway.address) as calls:
        for number in range(2):
            await calls.write(b"%d" % number)
        with pytest.raises(Refused, match="--tenant-upload-limit"):
            await calls.write(b"one more")


@pytest.mark.parametrize(
    ("peer", "account"),
    [
        ("ipv4:10.0.0.7:41234", "10.0.0.7"),
        ("ipv6:%5B2001:db8:1:2:3:4:5:6%5D:41234", "2001:db8:1:2::/64"),
        ("ipv6:[2001:db8:1:2::9]:1", "2001:db8:1:2::/64"),
        ("ipv6:%5B::ffff:10.0.0.7%5D:41234", "10.0.0.7"),
        ("ipv6:%5Bfe80::1%25eth0%5D:1", "fe80::/64"),
        ("unix:/run/farm", "unix"),
    ],
)
def test_a_stranger_is_known_by_its_address(peer: str, account: str) -> None:
    assert account_of_peer(peer) == account


async def test_places_go_round_among_accounts() -> None:
    semaphore = FairSemaphore("reading", places=2, account_places=2, account_waiting=3)
    order: list[str] = []

    async def call(account: str, release: asyncio.Event) -> None:
        async with semaphore.acquired(account):
            order.append(account)
            await release.wait()

    releases = [asyncio.Event() for _ in range(6)]
    accounts = ["greedy"] * 5 + ["modest"]
    tasks = [asyncio.create_task(call(*each)) for each in zip(accounts, releases, strict=True)]
    await asyncio.sleep(0)
    assert order == ["greedy", "greedy"]
    tasks[3].cancel()
    for release in releases:
        release.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order[:4] == ["greedy", "greedy", "greedy", "modest"] or order[2:4] == ["modest", "greedy"]
    assert len(order) == 5
    async with semaphore.acquired("greedy"), semaphore.acquired("greedy"):
        pass


async def test_the_job_that_missed_tensors_is_compiled_when_they_have_come(tmp_path: Path) -> None:
    async with farm(tmp_path, {"": "admin"}) as callers:
        digest = await callers[""].write(BLOB[:MAX_BYTES])
        assert (await callers[""].finish(sample_job(constants=[digest]))).HasField("manifest")


def test_tenants_that_callers_make_up_are_not_remembered_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compilefarm.service.quotas._MOST_TENANTS", 100)
    quotas = Quotas(limit_bytes=1, clock=ManualClock())
    quotas.take(1, tenant="real")
    for number in range(98):
        quotas.take(1, tenant=f"made up {number}")
    with pytest.raises(StoreFull):
        quotas.take(1, tenant="real")
    for number in range(98, 300):
        quotas.take(1, tenant=f"made up {number}")
    assert len(quotas._sums) <= 100


_UPLOADING = """
import asyncio, signal
from compilefarm.store.backend import staging_of_user
from compilefarm.store.files import staged
async def upload():
    async with staged(staging_of_user(), name="0" * 64) as blob:
        await blob.write(bytes(4096))
        print("begun", flush=True)
        signal.pause()
asyncio.run(upload())
"""


@contextmanager
def uploading(folder: Path) -> Iterator[None]:
    """A process that has an upload under way to a store that is no folder, and is killed in the end."""
    variables = {**os.environ, "TMPDIR": str(folder)}
    with subprocess.Popen([sys.executable, "-c", _UPLOADING], env=variables, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"begun\n"
            yield
        finally:
            process.kill()


async def test_uploads_of_services_that_were_killed_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = staging_of_user()
    with uploading(tmp_path):
        pass
    (left,) = folder.iterdir()
    with uploading(tmp_path):
        await open_store("memory:")
        # Another service of this user goes on with its own.
        (kept,) = folder.iterdir()
        assert kept != left
