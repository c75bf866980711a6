"""Any order of writes, reads and damage, against a dictionary."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from obstore.store import MemoryStore

from compilefarm.core.artifacts import blobs_of
from compilefarm.core.digests import digest_of
from compilefarm.core.errors import NotStored
from compilefarm.store.layout import blob_path
from compilefarm.store.object_backend import ObjectBackend
from compilefarm.store.opening import build_store
from compilefarm.store.testing import sample_artifact, sample_key
from compilefarm.v1.manifest_pb2 import Manifest

SAMPLES = [b"", b"a", b"bb", b"cc", b"ddd"]
CONTENTS = st.sampled_from(SAMPLES)
KEYS = st.sampled_from([sample_key("one"), sample_key("two"), sample_key("one", graph="another graph")])


class StoreMachine(RuleBasedStateMachine):
    """`stored` is what lies in the store under each digest, damaged or not; `manifests` what was written per key."""

    def __init__(self) -> None:
        super().__init__()
        # With a factory, the runner leaves alone the loop that pytest-asyncio keeps for this thread.
        self.runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self.medium = MemoryStore()
        self.store = self.run(build_store(ObjectBackend(self.medium, location="memory:")))
        self.stored: dict[str, bytes] = {}
        self.manifests: dict[str, list[Manifest]] = {}
        self.corrupt_blobs = 0

    def teardown(self) -> None:
        self.runner.close()

    def run(self, action: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(action)

    def expect_put(self, content: bytes) -> None:
        there = self.stored.get(digest_of(content))
        self.corrupt_blobs += there is not None and len(there) != len(content)
        if there is None or len(there) != len(content):
            self.stored[digest_of(content)] = content

    def expected_manifest(self, key: str) -> Manifest | None:
        def complete(manifest: Manifest) -> bool:
            return all(
                blob.digest in self.stored and len(self.stored[blob.digest]) == blob.size_bytes
                for blob in blobs_of(manifest)
            )

        return next(filter(complete, self.manifests.get(key, [])), None)

    @rule(content=CONTENTS)
    def put_blob(self, content: bytes) -> None:
        self.run(self.store.put_blob(content, digest=digest_of(content)))
        self.expect_put(content)

    @rule(content=CONTENTS)
    def get_blob(self, content: bytes) -> None:
        digest = digest_of(content)
        if self.stored.get(digest) == content:
            assert self.run(self.store.get_blob(digest)) == content
            return
        with pytest.raises(NotStored):
            self.run(self.store.get_blob(digest))
        self.corrupt_blobs += self.stored.pop(digest, None) is not None

    @rule(key=KEYS, program=CONTENTS, libraries=st.lists(CONTENTS, max_size=2))
    def put_artifact(self, key: str, program: bytes, libraries: list[bytes]) -> None:
        artifact = sample_artifact(key, program=program, libraries=libraries)
        answer = self.run(self.store.put_artifact(artifact.manifest, blobs=artifact.blobs))
        for content in artifact.blobs.values():
            self.expect_put(content)
        if self.expected_manifest(key) is None:
            self.manifests.setdefault(key, []).append(artifact.manifest)
        assert answer == self.expected_manifest(key)

    @rule(key=KEYS)
    def find_manifest(self, key: str) -> None:
        assert self.run(self.store.find_manifest(key)) == self.expected_manifest(key)

    @rule(content=CONTENTS, damaged=st.sampled_from([b"xx", b"much too long"]))
    def damage(self, content: bytes, damaged: bytes) -> None:
        digest = digest_of(content)
        if digest in self.stored:
            self.run(self.medium.put_async(blob_path(digest), damaged, mode="overwrite"))
            self.stored[digest] = damaged

    @invariant()
    def agrees(self) -> None:
        wanted = [digest_of(content) for content in SAMPLES]
        assert self.run(self.store.find_missing(wanted)) == [each for each in wanted if each not in self.stored]
        usage = self.run(self.store.usage())
        assert usage.blobs == len(self.stored)
        assert usage.artifacts == sum(map(len, self.manifests.values()))
        assert usage.corrupt_blobs == self.corrupt_blobs


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
