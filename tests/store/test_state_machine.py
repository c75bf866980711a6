"""Any order of writes, reads, damage, restarts and evictions, against dictionaries, in every kind of storage."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from obstore.store import MemoryStore

from compilefarm.core.artifacts import blobs_of
from compilefarm.core.digests import digest_of
from compilefarm.core.errors import NotStored
from compilefarm.store.backend import Backend
from compilefarm.store.layout import BLOBS, MANIFESTS, blob_path, key_of, manifest_path, namespace_of
from compilefarm.store.limited import RETRY_SECONDS, LimitedStore
from compilefarm.store.local import open_directory
from compilefarm.store.object_backend import ObjectBackend
from compilefarm.store.opening import build_store
from compilefarm.store.records import write_record
from compilefarm.store.s3 import open_bucket
from compilefarm.store.testing import MovedClock, sample_artifact, sample_key
from compilefarm.store.uses import LEASE_SECONDS
from compilefarm.v1.manifest_pb2 import Manifest
from tests.store.s3_server import S3Server

SAMPLES = [b"", b"a", b"b" * 700, b"c" * 700, b"d" * 900]
CONTENTS = st.sampled_from(SAMPLES)
NAMESPACES = ["", "dev"]
KEYS = st.sampled_from([sample_key("one"), sample_key("two"), sample_key("one", graph="another graph")])
# Of about two artifacts.
LIMIT = 2000


class StoreMachine(RuleBasedStateMachine):
    """What the store has to do is worked out from `blobs`, the bytes that lie at each path, damaged or not, and
    `manifests`, the same for manifests; None is a damaged one.

    Args:
        open_backend: opens the storage, which is empty the first time.
    """

    def __init__(self, open_backend: Callable[[], Backend]) -> None:
        super().__init__()
        # With a factory, the runner leaves alone the loop that pytest-asyncio keeps for this thread.
        self.runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self.open_backend = open_backend
        self.clock = MovedClock()
        self.ahead_seconds = 0.0
        self.medium = open_backend()
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[str, Manifest | None] = {}
        self.evicted = 0
        self.open()

    def teardown(self) -> None:
        self.runner.close()

    def run(self, action: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(action)

    def open(self) -> None:
        store = self.run(build_store(self.open_backend(), size_limit_bytes=LIMIT, now=self.clock))
        assert isinstance(store, LimitedStore)
        self.store = store
        self.used: dict[str, float] = {}
        self.corrupt_blobs = self.corrupt_manifests = self.evicted_artifacts = 0
        self.quiet_until = 0.0

    # What the store is expected to know.

    def is_complete(self, manifest: Manifest | None) -> bool:
        return manifest is not None and all(
            len(self.blobs.get(blob_path(blob.digest), b"#" * 9999)) == blob.size_bytes for blob in blobs_of(manifest)
        )

    def places_of(self, key: str, namespaces: list[str]) -> list[str]:
        return sorted(
            (path for path in self.manifests if key_of(path) == key and namespace_of(path) in namespaces),
            # The first of each namespace is looked at before any listing.
            key=lambda path: (number_of(path) > 0, namespaces.index(namespace_of(path)), number_of(path)),
        )

    def use(self, path: str) -> None:
        self.used[path] = self.clock()

    def must_stay(self, path: str) -> bool:
        return self.clock() - self.used.get(path, 0.0) < LEASE_SECONDS

    def may_stay(self, path: str) -> bool:
        # Times in the storage are those of the machine's clock.
        return self.must_stay(path) or self.ahead_seconds < LEASE_SECONDS

    def expect_look(self, key: str, namespaces: list[str]) -> Manifest | None:
        """What is found under a key, and what is set aside on the way to it."""
        for path in self.places_of(key, namespaces):
            manifest = self.manifests[path]
            if manifest is None:
                del self.manifests[path]
                self.corrupt_manifests += 1
            elif self.is_complete(manifest):
                self.use(path)
                return manifest
            else:
                for blob in {blob.digest: blob for blob in blobs_of(manifest)}.values():
                    self.expect_size(blob_path(blob.digest), blob.size_bytes)
        return None

    def expect_size(self, path: str, size_bytes: int) -> None:
        if path in self.blobs and len(self.blobs[path]) != size_bytes:
            del self.blobs[path]
            self.corrupt_blobs += 1

    def expect_put(self, content: bytes) -> None:
        path = blob_path(digest_of(content))
        self.expect_size(path, len(content))
        self.blobs.setdefault(path, content)
        self.use(path)

    # What is done to it.

    @rule(content=CONTENTS)
    def put_blob(self, content: bytes) -> None:
        self.run(self.store.put_blob(content, digest=digest_of(content)))
        self.expect_put(content)
        self.expect_room()

    @rule(content=CONTENTS)
    def get_blob(self, content: bytes) -> None:
        path = blob_path(digest_of(content))
        if self.blobs.get(path) == content:
            assert self.run(self.store.get_blob(digest_of(content))) == content
            return
        with pytest.raises(NotStored):
            self.run(self.store.get_blob(digest_of(content)))
        self.corrupt_blobs += self.blobs.pop(path, None) is not None

    @rule(wanted=st.lists(CONTENTS, max_size=4))
    def find_missing(self, wanted: list[bytes]) -> None:
        digests = list(dict.fromkeys(map(digest_of, wanted)))
        missing = [digest for digest in digests if blob_path(digest) not in self.blobs]
        assert self.run(self.store.find_missing(digests)) == missing
        for digest in set(digests) - set(missing):
            self.use(blob_path(digest))

    @rule(key=KEYS, namespace=st.sampled_from(NAMESPACES), program=CONTENTS, libraries=st.lists(CONTENTS, max_size=2))
    def put_artifact(self, key: str, namespace: str, program: bytes, libraries: list[bytes]) -> None:
        artifact = sample_artifact(key, program=program, libraries=libraries)
        artifact.manifest.namespace = namespace
        answer = self.run(self.store.put_artifact(artifact.manifest, blobs=artifact.blobs))
        for content in artifact.blobs.values():
            self.expect_put(content)
        listed = self.places_of(key, [namespace])
        expected = self.expect_look(key, [namespace])
        if expected is None:
            expected = artifact.manifest
            path = manifest_path(key, variant=number_of(listed[-1]) + 1 if listed else 0, namespace=namespace)
            self.manifests[path] = expected
            self.use(path)
        assert answer == expected
        self.expect_room()

    @rule(key=KEYS, namespaces=st.permutations(NAMESPACES), readable=st.integers(1, 2))
    def find_manifest(self, key: str, namespaces: list[str], readable: int) -> None:
        asked = namespaces[:readable]
        found = self.run(self.store.find_manifest(key, namespaces=asked))
        assert found == self.expect_look(key, asked)
        assert found is None or found.namespace in asked

    @rule(key=KEYS)
    def find_by_prefix(self, key: str) -> None:
        stored = {each for each in map(key_of, self.manifests) if each[:16] == key[:16]}
        # There may be more: some storages keep folders whose objects are gone.
        assert stored <= set(self.run(self.store.find_by_prefix(key[:16])))

    @rule(content=CONTENTS, damaged=st.sampled_from([None, b"xx", b"much too long", b"e" * 700]))
    def damage_blob(self, content: bytes, damaged: bytes | None) -> None:
        path = blob_path(digest_of(content))
        if path in self.blobs:
            self.run(self.overwrite(path, damaged))
            del self.blobs[path]
            if damaged is not None:
                self.blobs[path] = damaged

    @rule(key=KEYS, namespace=st.sampled_from(NAMESPACES), bit=st.integers(0, 8 * 300))
    def damage_manifest(self, key: str, namespace: str, bit: int) -> None:
        for path in self.places_of(key, [namespace])[:1]:
            if self.manifests[path] is not None:
                damaged = bytearray(write_record(self.manifests[path]))
                damaged[bit // 8 % len(damaged)] ^= 1 << bit % 8
                self.run(self.overwrite(path, bytes(damaged)))
                self.manifests[path] = None

    async def overwrite(self, path: str, content: bytes | None) -> None:
        await self.medium.delete(path)
        if content is not None:
            await self.medium.create(path, content=content)

    @rule(share=st.sampled_from([0.4, 2.2]))
    def let_time_pass(self, share: float) -> None:
        self.clock.move(share * LEASE_SECONDS)
        self.ahead_seconds += share * LEASE_SECONDS

    @rule()
    def open_again(self) -> None:
        self.open()

    # What has to hold.

    def expect_room(self) -> None:
        """After a write: things may be gone that were not in use, and the store is no larger than its limit."""
        self.run(self.store.has_room())
        whole = {path for path, manifest in self.manifests.items() if self.is_complete(manifest)}
        lying = self.run(self.lying())
        assert lying <= self.blobs.keys() | self.manifests.keys()
        for path in self.manifests.keys() - lying:
            assert self.manifests[path] is None or not self.must_stay(path)
        for path in self.blobs.keys() - lying:
            assert not self.must_stay(path)
        usage = self.run(self.store.usage())
        gone = self.manifests.keys() - lying
        set_aside = usage.corrupt_manifests - self.corrupt_manifests
        assert 0 <= set_aside <= sum(self.manifests[path] is None for path in gone)
        self.corrupt_manifests = usage.corrupt_manifests
        self.evicted_artifacts += len(gone) - set_aside
        assert usage.evicted_artifacts == self.evicted_artifacts
        self.blobs = {path: content for path, content in self.blobs.items() if path in lying}
        self.manifests = {path: manifest for path, manifest in self.manifests.items() if path in lying}
        assert all(self.is_complete(self.manifests[path]) for path in whole & lying)
        # It does not know how large a blob has become that was damaged where it lies.
        known_bytes = usage.size_bytes + sum(len(write_record(each)) for each in self.manifests.values() if each)
        if self.clock() >= self.quiet_until and known_bytes > LIMIT:
            named = {blob_path(blob.digest) for each in self.manifests.values() if each for blob in blobs_of(each)}
            assert all(self.may_stay(path) for path in (self.manifests.keys() | self.blobs.keys()) - named)
            self.quiet_until = self.clock() + RETRY_SECONDS

    async def lying(self) -> set[str]:
        return {
            entry.path for area in (BLOBS, MANIFESTS) for entry in [each async for each in self.medium.objects(area)]
        }

    @invariant()
    def agrees(self) -> None:
        assert self.run(self.lying()) == self.blobs.keys() | self.manifests.keys()
        usage = self.run(self.store.usage())
        assert (usage.corrupt_blobs, usage.corrupt_manifests) == (self.corrupt_blobs, self.corrupt_manifests)


def number_of(path: str) -> int:
    return int(path.rpartition("/")[2])


def check(open_backend: Callable[[], Callable[[], Backend]], *, examples: int) -> None:
    """Runs the machine.

    Args:
        open_backend: gives a new, empty storage for every example, which can be opened again and again.
        examples: how many there are.
    """
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        lambda: StoreMachine(open_backend()),
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            # What goes first may depend on the second in which it was written: a failure need not come again.
            phases=[Phase.generate],
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
        ),
    )


def test_memory() -> None:
    def empty() -> Callable[[], Backend]:
        medium = MemoryStore()
        return lambda: ObjectBackend(medium, location="memory:")

    check(empty, examples=60)


def test_directory(tmp_path: Path) -> None:
    numbers = itertools.count()

    def empty() -> Callable[[], Backend]:
        place = str(tmp_path / str(next(numbers)))
        return lambda: open_directory(place)

    check(empty, examples=20)


def test_s3(s3: S3Server) -> None:
    numbers = itertools.count()

    def empty() -> Callable[[], Backend]:
        # One for all starts of a service: it keeps nothing but its process, which takes a while to start.
        bucket = open_bucket(s3.location(f"machine/{next(numbers)}"))
        return lambda: bucket

    check(empty, examples=8)
