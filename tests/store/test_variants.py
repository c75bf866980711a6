"""Keys with many variants: those that do not fit a request are no burden to it, nor to others."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest

from compilefarm.core.pool import Artifact
from compilefarm.store.artifact_store import ArtifactStore
from compilefarm.store.backend import StoredObject
from compilefarm.store.known_guards import KnownGuards
from compilefarm.store.layout import manifest_path
from compilefarm.store.local import open_directory
from compilefarm.store.opening import build_store
from compilefarm.store.testing import sample_artifact, sample_key
from compilefarm.v1.graph_pb2 import OPERATOR_EQ, Expression, Operation
from tests.store.test_cached import CountedReads

KEY = sample_key("job")
VARIANTS = 20


def variant(hint: int) -> Artifact:
    """The artifact of KEY for one size alone."""
    artifact = sample_artifact(KEY)
    operands = [Expression(symbol=0), Expression(integer=hint)]
    artifact.manifest.guards.add(operation=Operation(operator=OPERATOR_EQ, operands=operands))
    return artifact


@pytest.fixture
def backend(tmp_path: Path) -> CountedReads:
    return CountedReads(open_directory(str(tmp_path)))


@pytest.fixture
async def store(backend: CountedReads) -> ArtifactStore:
    store = await build_store(backend)
    for artifact in map(variant, range(VARIANTS)):
        await store.put_artifact(artifact.manifest, blobs=artifact.blobs)
    assert await store.find_manifest(KEY, hints=[VARIANTS]) is None
    backend.reads.clear()
    return store


async def test_those_that_do_not_fit_are_not_read_again(store: ArtifactStore, backend: CountedReads) -> None:
    for hint in (VARIANTS + 1, VARIANTS + 2):
        assert await store.find_manifest(KEY, hints=[hint]) is None
    first = manifest_path(KEY, variant=0)
    assert backend.reads == [first, first]
    assert await store.find_manifest(KEY, hints=[7]) == variant(7).manifest
    assert backend.reads[2:] == [first, manifest_path(KEY, variant=7)]


async def test_what_takes_the_place_of_one_is_read(store: ArtifactStore) -> None:
    await store.withdraw(variant(VARIANTS - 1).manifest, reason="it is wrong")
    other = variant(VARIANTS)
    await store.put_artifact(other.manifest, blobs=other.blobs)
    assert await store.find_manifest(KEY, hints=[VARIANTS]) == other.manifest
    assert await store.find_manifest(KEY, hints=[VARIANTS - 1]) is None


async def test_many_who_look_through_them_leave_turns_to_others(store: ArtifactStore) -> None:
    # gRPC takes one call in some rounds of the event loop: others waited for seconds until theirs was taken.
    looking = [asyncio.create_task(store.find_manifest(KEY, hints=[100 + number])) for number in range(20)]
    rounds, done = list[int](), 0
    while done < len(looking):
        await asyncio.sleep(0)
        rounds.append(sum(map(asyncio.Task.done, looking)) - done)
        done += rounds[-1]
    assert max(rounds) == 1
    ended = [number for number, ends in enumerate(rounds) if ends]
    assert all(later - earlier >= 10 for earlier, later in pairwise(ended))


def test_what_is_known_has_a_bound() -> None:
    known = KnownGuards(most_bytes=10_000)
    stored = [StoredObject(path=f"{number}", size_bytes=1, modified_seconds=0.0, tag="") for number in range(100)]
    for each in stored:
        known.add(each, variant(1).manifest)
    assert [each for each in stored if known.find(each) is not None] == stored[-6:]
