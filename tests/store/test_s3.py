"""A store in a bucket of a real service."""

from __future__ import annotations

import asyncio

import pytest

from compilefarm.core.digests import digest_of
from compilefarm.core.errors import NotStored, StoreUnavailable
from compilefarm.store.layout import SET_ASIDE, blob_path, manifest_path
from compilefarm.store.limited import LimitedStore
from compilefarm.store.opening import collect_garbage, open_store
from compilefarm.store.s3 import open_bucket
from compilefarm.store.testing import MovedClock, sample_artifact, sample_key
from compilefarm.store.uses import LEASE_SECONDS
from tests.store.s3_server import S3Server

KEY = sample_key("job")


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    """A place of its own for each test."""
    return f"tests/{digest_of(request.node.name.encode())[:16]}"


async def test_what_was_stored_is_there_after_a_restart(s3: S3Server, prefix: str) -> None:
    artifact = sample_artifact(KEY)
    before = await open_store(s3.location(prefix))
    await before.put_artifact(artifact.manifest, blobs=artifact.blobs)
    after = await open_store(s3.location(prefix))
    assert await after.find_manifest(KEY) == artifact.manifest
    usage = await after.usage()
    assert usage == await before.usage()
    assert usage.location == f"s3://farm/{prefix} at {s3.endpoint}"


async def test_services_that_share_a_bucket_agree_on_one_artifact(s3: S3Server, prefix: str) -> None:
    stores = [await open_store(s3.location(prefix)) for _ in range(5)]
    artifacts = [sample_artifact(KEY, program=f"program {number}".encode()) for number in range(5)]
    answers = await asyncio.gather(
        *(
            store.put_artifact(artifact.manifest, blobs=artifact.blobs)
            for store, artifact in zip(stores, artifacts, strict=True)
        )
    )
    assert {answer.program.digest for answer in answers} == {answers[0].program.digest}
    assert [await store.find_manifest(KEY) for store in stores] == [answers[0]] * 5


async def test_only_one_of_many_creates_an_object(s3: S3Server, prefix: str) -> None:
    backends = [open_bucket(s3.location(prefix)) for _ in range(5)]
    created = await asyncio.gather(
        *(backend.create("ac/a/b/0", content=bytes([number])) for number, backend in enumerate(backends))
    )
    assert sorted(created) == [False] * 4 + [True]
    assert await backends[0].find("ac/a/b/0") == bytes([created.index(True)])


async def test_damaged_objects_are_set_aside(s3: S3Server, prefix: str) -> None:
    artifact, medium = sample_artifact(KEY), s3.medium(prefix)
    store = await open_store(s3.location(prefix))
    await store.put_artifact(artifact.manifest, blobs=artifact.blobs)
    digest = artifact.manifest.program.digest
    await medium.put_async(blob_path(digest), b"progrxm")
    with pytest.raises(NotStored):
        await store.get_blob(digest)
    await medium.put_async(manifest_path(KEY, variant=0), b"damaged")
    assert await store.find_manifest(KEY) is None
    listed = [entry["path"] async for batch in medium.list(SET_ASIDE) for entry in batch]
    assert sorted(listed) == sorted(
        f"{SET_ASIDE}/{name}{ending}" for name in (digest, f"{KEY}-0") for ending in ("", ".reason")
    )
    await store.put_artifact(artifact.manifest, blobs=artifact.blobs)
    assert await store.find_manifest(KEY) == artifact.manifest
    usage = await store.usage()
    assert (usage.corrupt_blobs, usage.corrupt_manifests) == (1, 1)


async def test_a_bucket_is_kept_below_its_limit(s3: S3Server, prefix: str) -> None:
    clock = MovedClock()
    store = await open_store(s3.location(prefix), size_limit_bytes=110_000, now=clock)
    assert isinstance(store, LimitedStore)
    for name in ("a", "b", "c", "d"):
        artifact = sample_artifact(sample_key(name), program=name.encode() * 30_000)
        await store.put_artifact(artifact.manifest, blobs=artifact.blobs)
        clock.move(2 * LEASE_SECONDS)
    await store.has_room()
    usage = await store.usage()
    assert usage.size_bytes <= 110_000
    assert usage.artifacts + usage.evicted_artifacts == 4
    assert await store.find_manifest(sample_key("a")) is None
    assert await store.find_manifest(sample_key("d")) is not None
    collected = await collect_garbage(s3.location(prefix), size_limit_bytes=1, dry_run=True)
    assert collected.artifacts == 0


@pytest.mark.parametrize(
    ("location", "complaint"),
    [
        ("s3:", "is named"),
        ("s3://", "is named"),
        ("s3:///prefix", "is named"),
        ("s3://bucket/prefix#x", "is named"),
        ("s3://bucket?endpoint=host:80", "is named"),
        ("s3://bucket?endpoint=ftp://host", "is named"),
        ("s3://bucket?retries=3", "no option 'retries'"),
        ("s3://bucket?endpoint", "is named"),
        ("s3://key:secret@bucket/prefix", "AWS_ACCESS_KEY_ID"),
        ("s3://bucket?endpoint=https://key:secret@host", "AWS_ACCESS_KEY_ID"),
    ],
)
async def test_a_location_that_is_written_otherwise_is_refused(location: str, complaint: str) -> None:
    with pytest.raises(StoreUnavailable, match=r"is named s3://BUCKET/PREFIX") as refused:
        await open_store(location)
    assert complaint in str(refused.value)
    assert "secret" not in str(refused.value)


async def test_a_wrong_secret_is_told_without_showing_it(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret")
    with pytest.raises(StoreUnavailable, match=r"could not write probe/.*403 Forbidden") as refused:
        await open_store(s3.location("wrong"))
    assert "not-the-secret" not in str(refused.value)


async def test_a_service_that_does_not_answer_is_unavailable(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compilefarm.store.s3.RETRY_SECONDS", 0.5)
    with pytest.raises(StoreUnavailable, match=r"s3://farm at http://127\.0\.0\.1:9 could not write"):
        await open_store("s3://farm?endpoint=http://127.0.0.1:9&region=us-east-1")


async def test_a_bucket_that_may_only_be_read_is_served_read_only(
    s3: S3Server, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = sample_artifact(KEY)
    await (await open_store(s3.location(prefix))).put_artifact(artifact.manifest, blobs=artifact.blobs)
    for name, value in s3.reading.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(StoreUnavailable, match="it can be read, and `compilefarm serve --read-only`"):
        await open_store(s3.location(prefix))
    store = await open_store(s3.location(prefix), read_only=True)
    assert await store.find_manifest(KEY) == artifact.manifest
    assert await store.get_blob(digest_of(b"program")) == b"program"
