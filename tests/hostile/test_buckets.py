"""A service of S3 that answers wrongly: its answers are misses, or errors with their reason."""

from __future__ import annotations

import asyncio
import itertools
import os
import resource
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from compilefarm.core.errors import NotStored, StoreUnavailable
from compilefarm.store.backend import LARGEST_IN_MEMORY_BYTES
from compilefarm.store.bucket import BucketBackend
from compilefarm.store.bucket_frames import Frame, read_frame, write_frame
from compilefarm.store.layout import manifest_path
from compilefarm.store.opening import open_caches, open_store
from compilefarm.store.s3 import open_bucket
from compilefarm.store.testing import sample_artifact, sample_key
from compilefarm.v1.cache_service_pb2 import CacheEntry, TorchCache
from tests.store.s3_stand_in import ENVIRONMENT, Answer, Asked, Bucket, Interfere, error_of, listing_of, standing_in

KEY, OTHER = sample_key("job"), sample_key("another")
FX_GRAPH = TorchCache.TORCH_CACHE_FX_GRAPH
_FOUND = {"ETag": '"1"', "Last-Modified": "Fri, 27 Nov 2026 12:00:00 GMT"}


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("compilefarm.store.s3.RETRY_SECONDS", 0.0)
    with standing_in() as bucket:
        yield bucket


def reads_are(answer: Answer) -> Interfere:
    return lambda asked: answer if asked.method == "GET" and asked.key else None


def listings_are(content: bytes) -> Interfere:
    return lambda asked: Answer(content=content) if asked.method == "GET" and not asked.key else None


@pytest.mark.parametrize("said_bytes", [2**40, 2**63 - 1])
async def test_a_length_that_is_a_lie_takes_no_memory(bucket: Bucket, said_bytes: int) -> None:
    artifact = sample_artifact(KEY)
    store = await open_store(bucket.location())
    await store.put_artifact(artifact.manifest, blobs=artifact.blobs)
    headers = {**_FOUND, "Content-Length": str(said_bytes)}
    # Of two pieces obstore puts one together, for which it took as much as was said, or ended the process.
    bucket.interfere = reads_are(Answer(headers=headers, pieces=[bytes(100_000)] * 2))
    for answer in (store.find_manifest(KEY), store.get_blob(artifact.manifest.program.digest)):
        with pytest.raises(StoreUnavailable, match="could not read"):
            await answer


def _children_of_this_process() -> set[int]:
    lists = [path.read_text().split() for path in Path("/proc/self/task").glob("*/children")]
    return set(map(int, itertools.chain.from_iterable(lists)))


async def test_what_has_the_credentials_leaves_no_core_to_a_program(bucket: Bucket) -> None:
    others = _children_of_this_process()
    store = await open_store(bucket.location())
    await store.probe()
    (child,) = _children_of_this_process() - others
    # With 0 the kernel starts the program that core_pattern names, all the same (fs/coredump.c).
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    assert resource.prlimit(child, resource.RLIMIT_CORE) == ((1, 1) if most else (0, 0))


@pytest.mark.parametrize("status", [200, 404])
@pytest.mark.parametrize("said_bytes", [2**40, 2**63 - 1])
async def test_a_listing_or_an_error_of_a_length_that_is_a_lie_ends_nobody(
    bucket: Bucket, capfd: pytest.CaptureFixture[str], status: int, said_bytes: int
) -> None:
    artifact = sample_artifact(KEY)
    store = await open_store(bucket.location())
    await store.put_artifact(artifact.manifest, blobs=artifact.blobs)
    headers = {"Content-Length": str(said_bytes)}

    def lies(asked: Asked) -> Answer | None:
        return Answer(status=status, headers=headers, pieces=[bytes(100_000)] * 2) if asked.method == "GET" else None

    # obstore takes as much memory as was said, or ends its process, which was the service.
    bucket.interfere = lies
    for answer in (store.find_manifest(KEY), store.find_by_prefix(KEY[:8])):
        with pytest.raises(StoreUnavailable, match="could not"):
            await answer
    bucket.interfere = lambda _: None
    assert await store.find_manifest(KEY) == artifact.manifest
    capfd.readouterr()


async def test_an_answer_without_an_end_takes_bounded_memory_of_a_process_of_its_own(
    bucket: Bucket, capfd: pytest.CaptureFixture[str]
) -> None:
    pieces = (bytes(2**20) for _ in itertools.count())
    bucket.interfere = lambda _: Answer(pieces=pieces)
    with pytest.raises(StoreUnavailable, match="the process that asks the service has ended"):
        await open_bucket(bucket.location()).folders("ac")
    assert "memory allocation" in capfd.readouterr().err


async def test_what_a_service_says_of_an_error_is_told_in_part(bucket: Bucket) -> None:
    bucket.interfere = lambda _: Answer(status=400, content=error_of("x" * 100_000, "y" * 100_000))
    with pytest.raises(StoreUnavailable) as raised:
        await open_bucket(bucket.location()).find("ac/object")
    assert "xxx" in str(raised.value)
    assert len(str(raised.value)) < 1000


async def test_listings_have_an_end(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compilefarm.store.bucket._MOST_LISTED_BYTES", 1_000_000)
    tokens = itertools.count()

    def goes_on(asked: Asked) -> Answer:
        token = next(tokens)
        more = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{token}</NextContinuationToken>"
        names = [(f"ac/{KEY[:16]}/{token}-{number}", 3) for number in range(1000)]
        return Answer(content=listing_of(names, more=more))

    bucket.interfere = goes_on
    with pytest.raises(StoreUnavailable, match="there is more than a store can have"):
        _ = [stored async for stored in open_bucket(bucket.location()).objects("ac")]


async def test_a_listing_of_names_that_are_too_long_is_no_listing(bucket: Bucket) -> None:
    bucket.interfere = listings_are(listing_of([(f"ac/{'x' * 20_000}{number}", 3) for number in range(100)]))
    with pytest.raises(StoreUnavailable, match=r"an answer has \d+ bytes"):
        _ = [stored async for stored in open_bucket(bucket.location()).objects("ac")]


async def test_a_service_that_is_silent_is_given_up(bucket: Bucket) -> None:
    is_over = threading.Event()

    def silent(_asked: Asked) -> None:
        is_over.wait()

    bucket.interfere = silent
    try:
        with pytest.raises(StoreUnavailable, match=r"nothing comes for 0.3 s"):
            await BucketBackend(bucket.location(), shown="", retry_seconds=0.0, answer_seconds=0.3).find("ac/object")
    finally:
        is_over.set()


async def test_a_process_that_does_nothing_keeps_nobody_waiting(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = BucketBackend(bucket.location(), shown="", retry_seconds=0.0)
    others = _children_of_this_process()
    await backend.find_object("ac/object")
    (child,) = _children_of_this_process() - others
    os.kill(child, signal.SIGSTOP)
    monkeypatch.setattr(backend, "_answer_seconds", 0.3)
    with pytest.raises(StoreUnavailable, match=r"nothing comes for 0.3 s"):
        # More than a socket holds.
        await backend.create("ac/object", content=bytes(10_000_000))
    os.kill(child, signal.SIGCONT)


async def test_a_process_that_was_ended_is_started_anew(bucket: Bucket) -> None:
    backend, others = open_bucket(bucket.location()), _children_of_this_process()
    await backend.create("ac/object", content=b"content")
    (child,) = _children_of_this_process() - others
    # As an administrator's order ends all processes of a service, which goes on until its jobs are done.
    for order in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(child, order)
    assert await backend.find("ac/object") == b"content"
    assert child in _children_of_this_process()
    os.kill(child, signal.SIGKILL)
    await asyncio.to_thread(os.waitid, os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert await backend.find("ac/object") == b"content"


async def test_no_more_is_read_into_memory_than_an_object_has(bucket: Bucket) -> None:
    pieces = (bytes(2**20) for _ in itertools.count())
    headers = {**_FOUND, "Content-Length": str(2**40)}
    bucket.interfere = reads_are(Answer(headers=headers, pieces=pieces))
    content = await open_bucket(bucket.location()).find("ac/vast")
    assert content is not None
    assert len(content) == LARGEST_IN_MEMORY_BYTES


async def test_what_is_listed_elsewhere_is_not_taken_for_what_was_asked_for(bucket: Bucket) -> None:
    artifact = sample_artifact(OTHER)
    store = await open_store(bucket.location())
    await store.put_artifact(artifact.manifest, blobs=artifact.blobs)
    bucket.interfere = listings_are(listing_of([(manifest_path(OTHER, variant=0), 3)], folders=["elsewhere/"]))
    # It was served, under the key that was asked for.
    with pytest.raises(StoreUnavailable, match=rf"could not list ac/.*'{manifest_path(OTHER, variant=0)}' is listed"):
        await store.find_manifest(KEY)
    with pytest.raises(StoreUnavailable, match=r"could not list ac: .*'elsewhere' is listed"):
        await store.find_by_prefix(KEY[:8])


async def test_a_listing_that_begins_again_and_again_ends(bucket: Bucket) -> None:
    again = "<IsTruncated>true</IsTruncated><NextContinuationToken>again</NextContinuationToken>"
    names = [f"ac/{KEY[:16]}/{KEY[17:]}/{number}" for number in range(100)]
    bucket.interfere = listings_are(listing_of([(name, 3) for name in names], more=again))
    with pytest.raises(StoreUnavailable, match=f"{names[0]}' is listed again"):
        _ = [stored async for stored in open_bucket(bucket.location()).objects(f"ac/{KEY[:16]}/{KEY[17:]}")]


@pytest.mark.parametrize("written", ["+262000-01-01T00:00:00Z", "-0001-12-31T23:59:59.999Z"])
async def test_a_time_beyond_the_calendar_is_an_error_of_the_storage(bucket: Bucket, written: str) -> None:
    store = await open_store(bucket.location())
    bucket.interfere = listings_are(listing_of([(manifest_path(KEY, variant=1), 3)], written=written))
    with pytest.raises(StoreUnavailable, match="is out of range"):
        await store.find_manifest(KEY)


@pytest.mark.parametrize("digits", ["9" * 5000, "\N{ARABIC-INDIC DIGIT THREE}"])
async def test_what_is_no_number_is_no_variant(bucket: Bucket, digits: str) -> None:
    store = await open_store(bucket.location())
    bucket.interfere = listings_are(listing_of([(f"ac/{KEY[:16]}/{KEY[17:]}/{digits}", 3)]))
    assert await store.find_manifest(KEY) is None


async def test_a_service_that_contradicts_itself_on_sizes_is_no_fault_of_who_asks(bucket: Bucket) -> None:
    artifact = sample_artifact(KEY)
    store = await open_store(bucket.location())

    def another_size(asked: Asked) -> Answer | None:
        is_blob = asked.method == "HEAD" and "cas/" in asked.key and asked.key in bucket.objects
        return Answer(headers={**_FOUND, "Content-Length": "3"}) if is_blob else None

    bucket.interfere = another_size
    with pytest.raises(StoreUnavailable, match="does not have what was written to it just now"):
        await store.put_artifact(artifact.manifest, blobs=artifact.blobs)


async def test_a_list_of_entries_fetches_no_entries(bucket: Bucket) -> None:
    caches = await open_caches(bucket.location(), size_limit_bytes=2**30, lifetime_seconds=3600.0)
    content = bytes(100_000)
    sample = sample_artifact(KEY, program=content).manifest.program
    entry = CacheEntry(cache=FX_GRAPH, key="key", digest=sample.digest, size_bytes=len(content))
    async with caches.staging(sample.digest) as blob:
        await blob.write(content)
        await caches.put(entry, blob)
    bucket.asked.clear()
    assert [each.key for each in await caches.list_descriptions(FX_GRAPH, key_prefix="", namespaces=[""])] == ["key"]
    reads = [asked for asked in bucket.asked if asked.method == "GET" and asked.key]
    assert [asked.headers["range"] for asked in reads] == ["bytes=-8192"]
    # One without an end has no description, and a service says that nothing of it can be read.
    (path,) = (key for key in bucket.objects if "/entries/" in key or key.startswith("entries/"))
    bucket.objects[path] = b""
    assert await caches.list_descriptions(FX_GRAPH, key_prefix="", namespaces=[""]) == []


async def test_a_blob_that_is_gone_when_it_is_read_is_a_miss(bucket: Bucket) -> None:
    artifact = sample_artifact(KEY)
    store = await open_store(bucket.location())
    await store.put_artifact(artifact.manifest, blobs=artifact.blobs)

    def gone(asked: Asked) -> Answer | None:
        return Answer(status=404) if asked.method == "GET" and "cas/" in asked.key else None

    bucket.interfere = gone
    assert await store.find_manifest(KEY) == artifact.manifest
    with pytest.raises(NotStored):
        await store.get_blob(artifact.manifest.program.digest)


def _process_of(others: set[int]) -> int:
    (child,) = _children_of_this_process() - others
    return child


async def test_another_process_takes_the_place_of_one_that_was_stopped(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "content"
    file.write_bytes(b"more")
    others = _children_of_this_process()
    backend = BucketBackend(bucket.location(), shown="", retry_seconds=0.0, look_seconds=0.1)
    await backend.create("ac/object", content=b"content")
    os.kill(_process_of(others), signal.SIGSTOP)
    # One that starts needs longer.
    monkeypatch.setattr(backend, "_pong_seconds", 0.5)
    # Both would have waited for ever, and so all that came after them.
    asked = (backend.open("ac/object"), backend.create_from("ac/large", file=file), backend.find("ac/object"))
    for error in await asyncio.gather(*asked, return_exceptions=True):
        assert isinstance(error, StoreUnavailable)
        assert "the process that asks the service" in str(error)
    monkeypatch.setattr(backend, "_pong_seconds", 60.0)
    assert await backend.find("ac/object") == b"content"
    assert await backend.create_from("ac/large", file=file)


async def test_a_process_that_is_slow_is_left_alone(bucket: Bucket) -> None:
    is_over = threading.Event()

    def slow(asked: Asked) -> None:
        if asked.method == "GET":
            is_over.wait()

    others = _children_of_this_process()
    backend = BucketBackend(bucket.location(), shown="", retry_seconds=0.0, look_seconds=0.01, pong_seconds=20.0)
    await backend.create("ac/object", content=b"content")
    child, bucket.interfere = _process_of(others), slow
    reading = asyncio.ensure_future(backend.find("ac/object"))
    # Many looks.
    await asyncio.wait([reading], timeout=0.3)
    is_over.set()
    assert await reading == b"content"
    assert child in _children_of_this_process()


async def test_the_next_request_has_a_process_whatever_the_last_one_had_not_taken(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    others, is_asked = _children_of_this_process(), asyncio.Event()
    backend = BucketBackend(bucket.location(), shown="", retry_seconds=0.0)
    await backend.create("ac/object", content=b"content")
    child = _process_of(others)
    os.kill(child, signal.SIGSTOP)

    async def read(reader: asyncio.StreamReader) -> Frame:
        is_asked.set()
        return await read_frame(reader)

    monkeypatch.setattr("compilefarm.store.bucket.read_frame", read)
    waiting = asyncio.ensure_future(backend.find("ac/object"))
    await is_asked.wait()
    os.kill(child, signal.SIGKILL)
    await asyncio.to_thread(os.waitid, os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert await backend.find("ac/object") == b"content"
    with pytest.raises(StoreUnavailable, match="has ended"):
        await waiting


async def test_more_requests_at_a_time_than_files_that_may_be_open_fail_nobody_else(bucket: Bucket) -> None:
    # As services are started: the limit can be raised by whoever needs more.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    backend = open_bucket(bucket.location())
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        await backend.create("ac/object", content=b"content")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    # They ended the process, and with it whatever anybody had asked.
    assert set(await asyncio.gather(*(backend.find("ac/object") for _ in range(500)))) == {b"content"}


async def test_what_many_write_at_a_time_is_not_all_in_the_memory_of_the_process(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred and fifty of 8 MB ended it, with all that others had asked."""
    backend, handed_over, written, most = open_bucket(bucket.location()), 0, 0, 0

    async def hand_over(writer: asyncio.StreamWriter, frame: Frame) -> None:
        nonlocal handed_over, most
        handed_over += 1
        most = max(most, handed_over - written)
        await write_frame(writer, frame)

    async def create(number: int) -> None:
        nonlocal written
        assert await backend.create(f"ac/{number}", content=b"content")
        written += 1

    monkeypatch.setattr("compilefarm.store.bucket.write_frame", hand_over)
    await asyncio.gather(*map(create, range(60)))
    assert most == 16
