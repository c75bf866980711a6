"""Variants of a key are bounded, of one caller and of all: each costs whoever looks the key up."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from compilefarm.core.keys import key_of
from compilefarm.core.pool import Artifact, Assignment
from compilefarm.service import variants as limits
from compilefarm.service.testing import Calls, ManualClock, Refused, ScriptedPool, calling, sample_job, serving
from compilefarm.service.testing.pool import OnPhase, artifact_of
from compilefarm.store import manifests
from compilefarm.store.artifact_store import ArtifactStore
from compilefarm.store.local import open_directory
from compilefarm.store.opening import build_store
from compilefarm.store.uses import LEASE_SECONDS
from compilefarm.v1.compile_service_pb2 import Outcome
from compilefarm.v1.graph_pb2 import OPERATOR_EQ, Expression, Operation
from compilefarm.v1.job_pb2 import Job, Symbol
from tests.hostile.callers import LOOPBACK, listing

MOST, MANY, OF_ACCOUNT = 6, 3, 2


def job_for(size: int) -> Job:
    job = sample_job()
    job.symbols.append(Symbol(lower=0))
    job.hints.append(size)
    return job


KEY = key_of(job_for(1)).text


async def for_one_size(assignment: Assignment, _worker: str, _on_phase: OnPhase) -> Artifact:
    """What a worker makes of a graph in which each size decides something."""
    artifact = artifact_of(assignment)
    for hint in assignment.job.hints:
        operands = [Expression(symbol=0), Expression(integer=hint)]
        artifact.manifest.guards.add(operation=Operation(operator=OPERATOR_EQ, operands=operands))
    return artifact


class Moment:
    """A time that stands still."""

    def __init__(self) -> None:
        # After that of every file.
        self.seconds = 1e11

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "MOST_VARIANTS", MOST)
    monkeypatch.setattr(limits, "_MANY", MANY)
    monkeypatch.setattr(limits, "_MANY_OF_ACCOUNT", OF_ACCOUNT)


@pytest.fixture
def moment() -> Moment:
    return Moment()


@pytest.fixture
async def store(tmp_path: Path, moment: Moment) -> ArtifactStore:
    return await build_store(open_directory(str(tmp_path / "store")), now=moment)


@pytest.fixture
async def callers(tmp_path: Path, store: ArtifactStore) -> AsyncIterator[Sequence[Calls]]:
    """Three of one namespace."""
    names = ("one", "two", "three")
    file = tmp_path / "callers.toml"
    lines = listing(dict.fromkeys(names, "compile")).splitlines()
    file.write_text("\n".join(line for line in lines if not line.startswith("namespace")))
    config = replace(LOOPBACK, auth_file=str(file))
    async with AsyncExitStack() as stack:
        pool, clock = ScriptedPool(for_one_size), ManualClock()
        gateway = await stack.enter_async_context(serving(pool=pool, store=store, config=config, clock=clock))
        yield [await stack.enter_async_context(calling(gateway.address, token=name)) for name in names]


async def compiled(caller: Calls, sizes: Iterable[int]) -> None:
    for size in sizes:
        assert (await caller.finish(job_for(size))).outcome == Outcome.OUTCOME_COMPILED


async def test_one_caller_has_some_of_a_key_that_has_many_and_leaves_others_room(callers: Sequence[Calls]) -> None:
    one, two, _ = callers
    await compiled(one, range(MANY + OF_ACCOUNT))
    with pytest.raises(
        Refused, match=r"5 variants, of which one had 2 made within the hour: compile locally"
    ) as refused:
        await one.finish(job_for(100))
    assert refused.value.reason == "busy"
    await compiled(two, [100])
    # What is stored is served, and other keys are not concerned.
    assert (await one.finish(job_for(0))).outcome == Outcome.OUTCOME_HIT
    assert (await one.finish(sample_job("torch.sin"))).outcome == Outcome.OUTCOME_COMPILED


async def test_the_one_that_was_used_least_makes_room_and_none_that_is_in_use(
    callers: Sequence[Calls], store: ArtifactStore, moment: Moment
) -> None:
    one, two, three = callers
    await compiled(one, range(MANY + 1))
    await compiled(two, range(MANY + 1, MOST))
    with pytest.raises(Refused, match="6 variants, all of which were used within the last hour"):
        await three.finish(job_for(100))
    moment.seconds += LEASE_SECONDS
    for size in set(range(MOST)) - {2, 4}:
        await one.lookup(job_for(size))
        moment.seconds += 1.0
    await compiled(three, [100])
    assert (await store.find_variants(KEY, namespace="")).count == MOST
    gone = [size for size in range(MOST) if await store.find_manifest(KEY, hints=[size]) is None]
    assert gone in ([2], [4])
