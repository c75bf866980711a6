"""What every store promises, wherever its bytes lie. The test of a backend inherits the contract."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from compilefarm.core.artifacts import ARTIFACT_FORMAT
from compilefarm.core.digests import digest_of
from compilefarm.core.errors import DigestMismatch, InvalidRequest, NotStored
from compilefarm.store.artifact_store import ArtifactStore
from compilefarm.store.blobs import few_at_a_time
from compilefarm.store.counting import SMALLEST_OBJECT_BYTES
from compilefarm.store.opening import open_store
from compilefarm.store.testing import sample_artifact, sample_key
from compilefarm.v1.graph_pb2 import OPERATOR_LE, Expression, Operation
from compilefarm.v1.job_pb2 import CompileFailure
from compilefarm.v1.manifest_pb2 import Check
from tests.store.s3_server import S3Server

KEY = sample_key("job")


class ArtifactStoreContract:
    """Subclasses give a fixture `store`: an empty one."""

    @pytest.mark.parametrize("size_bytes", [0, 1, 8 * 1024 * 1024])
    async def test_gives_back_the_bytes_of_a_blob(self, store: ArtifactStore, size_bytes: int) -> None:
        content = random.Random(size_bytes).randbytes(size_bytes)
        await store.put_blob(content, digest=digest_of(content))
        assert await store.get_blob(digest_of(content)) == content

    async def test_keeps_nothing_that_does_not_match_its_digest(self, store: ArtifactStore) -> None:
        digest = digest_of(b"meant")
        with pytest.raises(DigestMismatch, match=digest):
            await store.put_blob(b"sent", digest=digest)
        assert await store.find_missing([digest, digest_of(b"sent")]) == [digest, digest_of(b"sent")]

    async def test_keeps_what_checks_found(self, store: ArtifactStore) -> None:
        first, second = (Check(key=KEY, ended=Timestamp(seconds=seconds), seconds=seconds) for seconds in (1, 2))
        for check in (second, first, second):
            await store.put_check(check)
        assert await store.find_checks(KEY) == [first, second]
        assert await store.find_checks(sample_key("other")) == []
        with pytest.raises(InvalidRequest, match="is not a key"):
            await store.find_checks("no key")

    async def test_no_more_is_read_of_what_checks_found_than_memory_is_set_aside_for(
        self, store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A reader had all of them in memory: 150 of 4 MB took 590 MB."""
        monkeypatch.setattr("compilefarm.store.checks._MOST_BYTES", 2_000)
        for number in range(9):
            failed = CompileFailure(message=f"{number}" * 1_000)
            await store.put_check(Check(key=KEY, failed=failed, ended=Timestamp(seconds=number)))
        assert len(await store.find_checks(KEY)) == 2

    async def test_keeps_apart_what_checks_found_in_other_namespaces(self, store: ArtifactStore) -> None:
        everybodys, dev = Check(key=KEY, seconds=1), Check(key=KEY, seconds=2, namespace="dev")
        for check in (everybodys, dev):
            await store.put_check(check)
        assert await store.find_checks(KEY) == [everybodys]
        assert await store.find_checks(KEY, namespaces=["dev"]) == [dev]
        assert await store.find_checks(KEY, namespaces=["prod"]) == []
        assert len(await store.find_checks(KEY, namespaces=["dev", ""])) == 2
        with pytest.raises(InvalidRequest, match="name of a namespace"):
            await store.put_check(Check(key=KEY, namespace="../prod"))

    async def test_what_is_withdrawn_is_a_miss_and_makes_room_for_the_next(self, store: ArtifactStore) -> None:
        artifact = sample_artifact(KEY)
        stored = await store.put_artifact(artifact.manifest, blobs=artifact.blobs)
        other = sample_artifact(KEY, program=b"other").manifest
        assert not await store.withdraw(other, reason="never stored")
        assert await store.withdraw(stored, reason="output 0 differs")
        assert await store.find_manifest(KEY) is None
        assert (await store.usage()).artifacts == 0
        assert not await store.withdraw(stored, reason="output 0 differs")
        following = sample_artifact(KEY, program=b"better")
        await store.put_artifact(following.manifest, blobs=following.blobs)
        found = await store.find_manifest(KEY)
        assert found is not None
        assert found.program == following.manifest.program

    async def test_says_which_blob_is_not_stored(self, store: ArtifactStore) -> None:
        with pytest.raises(NotStored, match=digest_of(b"never")):
            await store.get_blob(digest_of(b"never"))

    async def test_writing_a_blob_again_changes_nothing(self, store: ArtifactStore) -> None:
        await asyncio.gather(*(store.put_blob(b"same", digest=digest_of(b"same")) for _ in range(10)))
        await store.put_blob(b"same", digest=digest_of(b"same"))
        usage = await store.usage()
        assert (usage.blobs, usage.size_bytes) == (1, SMALLEST_OBJECT_BYTES)

    @pytest.mark.parametrize("size_bytes", [0, 5, 9 * 1024 * 1024])
    async def test_takes_and_gives_a_blob_in_pieces(self, store: ArtifactStore, size_bytes: int) -> None:
        content = os.urandom(size_bytes)
        digest = digest_of(content)
        for _ in range(2):
            async with store.staging(digest) as blob:
                for start in range(0, size_bytes, 1024 * 1024):
                    await blob.write(content[start : start + 1024 * 1024])
                await store.put_staged(blob, digest=digest, namespace="")
                place = blob.path
            assert not place.exists()
        assert await store.get_blob(digest) == content
        assert await store.find_size(digest) == size_bytes
        async with store.reading(digest) as reading:
            assert reading.size_bytes == size_bytes
            assert await reading.read(3, 10**6) == content[3 : 10**6 + 3]
        usage = await store.usage()
        assert (usage.blobs, usage.size_bytes) == (1, max(size_bytes, SMALLEST_OBJECT_BYTES))

    async def test_pieces_that_are_something_else_are_not_kept(self, store: ArtifactStore) -> None:
        async with store.staging(digest_of(b"right")) as blob:
            await blob.write(b"wrong")
            with pytest.raises(DigestMismatch, match=digest_of(b"wrong")):
                await store.put_staged(blob, digest=digest_of(b"right"), namespace="")
        assert await store.find_size(digest_of(b"right")) is None
        with pytest.raises(NotStored):
            async with store.reading(digest_of(b"right")):
                pass

    async def test_finds_missing_blobs_in_the_order_asked_each_once(self, store: ArtifactStore) -> None:
        there, first, second = digest_of(b"there"), digest_of(b"first"), digest_of(b"second")
        await store.put_blob(b"there", digest=there)
        assert await store.find_missing([second, there, first, second]) == [second, first]
        assert await store.find_missing([]) == []

    @pytest.mark.parametrize("name", ["", "abc", "A" * 64, "../" * 20 + "etc/passwd", digest_of(b"") + "\n"])
    async def test_refuses_what_is_no_digest(self, store: ArtifactStore, name: str) -> None:
        with pytest.raises(InvalidRequest, match="digest"):
            await store.get_blob(name)
        with pytest.raises(InvalidRequest, match="digest"):
            await store.find_missing([name])
        with pytest.raises(InvalidRequest, match="digest"):
            await store.put_blob(b"", digest=name)

    @pytest.mark.parametrize("name", ["", "abc", "../" * 27, KEY + "/0", KEY.upper()])
    async def test_refuses_what_is_no_key(self, store: ArtifactStore, name: str) -> None:
        with pytest.raises(InvalidRequest, match="key"):
            await store.find_manifest(name)
        artifact = sample_artifact(name)
        with pytest.raises(InvalidRequest, match="key"):
            await store.put_artifact(artifact.manifest, blobs=artifact.blobs)

    async def test_gives_back_an_artifact(self, store: ArtifactStore) -> None:
        artifact = sample_artifact(KEY)
        assert await store.find_manifest(KEY) is None
        assert await store.put_artifact(artifact.manifest, blobs=artifact.blobs) == artifact.manifest
        assert await store.find_manifest(KEY) == artifact.manifest
        assert {digest: await store.get_blob(digest) for digest in artifact.blobs} == artifact.blobs
        assert await store.find_manifest(sample_key("another job")) is None

    async def test_the_first_writer_of_a_key_wins(self, store: ArtifactStore) -> None:
        first, second = sample_artifact(KEY, program=b"first"), sample_artifact(KEY, program=b"second")
        await store.put_artifact(first.manifest, blobs=first.blobs)
        assert await store.put_artifact(second.manifest, blobs=second.blobs) == first.manifest
        assert await store.find_manifest(KEY) == first.manifest

    async def test_variants_of_a_key_are_told_apart_by_their_guards(self, store: ArtifactStore) -> None:
        small, large = (sample_artifact(KEY, program=name) for name in (b"small", b"large"))
        least, most = Expression(integer=65), Expression(integer=64)
        size = Expression(symbol=0)
        small.manifest.guards.add(operation=Operation(operator=OPERATOR_LE, operands=[size, most]))
        large.manifest.guards.add(operation=Operation(operator=OPERATOR_LE, operands=[least, size]))
        await store.put_artifact(small.manifest, blobs=small.blobs)
        assert await store.find_manifest(KEY, hints=[64]) == small.manifest
        assert await store.find_manifest(KEY, hints=[65]) is None
        assert await store.put_artifact(large.manifest, blobs=large.blobs) == large.manifest
        for variant, hint in ((small, 2), (small, 64), (large, 65), (large, 1000)):
            assert await store.find_manifest(KEY, hints=[hint]) == variant.manifest
        assert await store.find_manifest(KEY) == small.manifest

    async def test_concurrent_writers_of_a_key_agree_on_one_artifact(self, store: ArtifactStore) -> None:
        artifacts = [sample_artifact(KEY, program=f"program {number}".encode()) for number in range(20)]
        answers = await asyncio.gather(*(store.put_artifact(each.manifest, blobs=each.blobs) for each in artifacts))
        winner = await store.find_manifest(KEY)
        assert winner in [each.manifest for each in artifacts]
        assert all(answer == winner for answer in answers)
        assert (await store.usage()).artifacts == 1

    async def test_blobs_that_are_stored_need_not_be_handed_over(self, store: ArtifactStore) -> None:
        artifact = sample_artifact(KEY, libraries=[b"shared"])
        await store.put_blob(b"shared", digest=digest_of(b"shared"))
        await store.put_artifact(artifact.manifest, blobs={digest_of(b"program"): b"program"})
        assert await store.find_manifest(KEY) == artifact.manifest

    async def test_an_artifact_without_all_of_its_blobs_is_refused(self, store: ArtifactStore) -> None:
        artifact = sample_artifact(KEY)
        with pytest.raises(InvalidRequest, match=KEY):
            await store.put_artifact(artifact.manifest, blobs={digest_of(b"program"): b"program"})
        assert await store.find_manifest(KEY) is None

    async def test_an_artifact_that_lies_about_a_size_is_refused(self, store: ArtifactStore) -> None:
        artifact = sample_artifact(KEY)
        artifact.manifest.program.size_bytes += 1
        with pytest.raises(InvalidRequest, match=KEY):
            await store.put_artifact(artifact.manifest, blobs=artifact.blobs)
        assert await store.find_manifest(KEY) is None

    async def test_an_artifact_with_a_damaged_blob_is_refused(self, store: ArtifactStore) -> None:
        artifact = sample_artifact(KEY)
        with pytest.raises(DigestMismatch):
            await store.put_artifact(artifact.manifest, blobs={**artifact.blobs, digest_of(b"library"): b"lxbrary"})
        assert await store.find_manifest(KEY) is None

    async def test_an_artifact_of_another_format_is_refused(self, store: ArtifactStore) -> None:
        artifact = sample_artifact(KEY)
        artifact.manifest.format = ARTIFACT_FORMAT + 1
        with pytest.raises(InvalidRequest, match=f"format {ARTIFACT_FORMAT + 1}"):
            await store.put_artifact(artifact.manifest, blobs=artifact.blobs)
        assert await store.find_manifest(KEY) is None

    @pytest.mark.parametrize("length", [6, 16, 17, 30, 81])
    async def test_finds_a_key_by_its_beginning(self, store: ArtifactStore, length: int) -> None:
        for key in (KEY, sample_key("job", graph="another graph")):
            artifact = sample_artifact(key)
            await store.put_artifact(artifact.manifest, blobs=artifact.blobs)
        assert await store.find_by_prefix(KEY[:length]) == [KEY]

    async def test_finds_at_most_twenty_keys_in_order(self, store: ArtifactStore) -> None:
        keys = [sample_key(f"job {number}") for number in range(25)]
        for key in keys:
            artifact = sample_artifact(key)
            await store.put_artifact(artifact.manifest, blobs=artifact.blobs)
        assert await store.find_by_prefix(KEY[:16]) == sorted(keys)[:20]
        assert await store.find_by_prefix(KEY[:6]) == sorted(keys)[:20]

    async def test_finds_no_key_that_begins_otherwise(self, store: ArtifactStore) -> None:
        artifact = sample_artifact(KEY)
        await store.put_artifact(artifact.manifest, blobs=artifact.blobs)
        assert await store.find_by_prefix("000000") == []
        assert await store.find_by_prefix(KEY[:16] + "-0000") == []
        assert await store.find_by_prefix(KEY[:16] + "0") == []

    @pytest.mark.parametrize("prefix", ["", KEY[:5], "../../etc", "g" * 8])
    async def test_refuses_what_cannot_begin_a_key(self, store: ArtifactStore, prefix: str) -> None:
        with pytest.raises(InvalidRequest, match="at least 6"):
            await store.find_by_prefix(prefix)

    async def test_counts_what_it_holds_and_shared_blobs_once(self, store: ArtifactStore) -> None:
        for name in ("one", "two"):
            artifact = sample_artifact(sample_key(name), program=name.encode(), libraries=[b"shared library"])
            await store.put_artifact(artifact.manifest, blobs=artifact.blobs)
        usage = await store.usage()
        assert (usage.artifacts, usage.blobs) == (2, 3)
        assert usage.size_bytes == 3 * SMALLEST_OBJECT_BYTES
        assert usage.corrupt_blobs == 0


class TestMemory(ArtifactStoreContract):
    @pytest.fixture
    async def store(self) -> ArtifactStore:
        return await open_store("memory:")


class TestDirectory(ArtifactStoreContract):
    @pytest.fixture
    async def store(self, tmp_path: Path) -> ArtifactStore:
        return await open_store(str(tmp_path / "store"))


class TestCached(ArtifactStoreContract):
    @pytest.fixture
    async def store(self, tmp_path: Path) -> ArtifactStore:
        return await open_store(str(tmp_path / "store"), cache_bytes=10**6)


class TestS3(ArtifactStoreContract):
    @pytest.fixture
    async def store(self, s3: S3Server, request: pytest.FixtureRequest) -> ArtifactStore:
        return await open_store(s3.location(f"contract/{digest_of(request.node.name.encode())[:16]}"))


async def test_few_are_done_at_a_time_and_all_end_before_an_error_is_raised() -> None:
    running, most, done = 0, 0, []

    async def work(number: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        done.append(number)
        if number == 3:
            raise ValueError(number)
        return number

    with pytest.raises(ValueError, match="3"):
        await few_at_a_time(work, range(50), turns=4)
    assert (most, len(done)) == (4, 50)
    assert await few_at_a_time(work, range(4, 50), turns=4) == list(range(4, 50))
