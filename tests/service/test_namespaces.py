"""Callers that are trusted differently: what one has made is never served to another that is trusted more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from compilefarm.core.digests import digest_of
from compilefarm.core.errors import NotStored
from compilefarm.core.keys import key_of
from compilefarm.core.pool import Artifact, Assignment
from compilefarm.service.config import CannotStart, GatewayConfig
from compilefarm.service.directory import read_directory
from compilefarm.service.testing import (
    ENVIRONMENT,
    Calls,
    HeldCompiles,
    Refused,
    ScriptedPool,
    calling,
    sample_job,
    serving,
)
from compilefarm.service.testing.pool import OnPhase, Script, artifact_of, compile_at_once
from compilefarm.service.tuned_artifacts import find_tuned
from compilefarm.store.artifact_store import ArtifactStore
from compilefarm.store.opening import open_store
from compilefarm.store.testing import sample_artifact, sample_key
from compilefarm.v1.compile_service_pb2 import Outcome
from compilefarm.v1.job_pb2 import CompileFailure, FailureKind
from compilefarm.v1.manifest_pb2 import BUILDER_KERNEL, Signature
from tests.hostile.callers import farm

NAMESPACES = ("prod", "staging", "dev")
KEY = key_of(sample_job()).text


def entry(name: str, *, role: str, namespace: str) -> str:
    return (
        f'[[callers]]\nname = "{name}"\nrole = "{role}"\nnamespace = "{namespace}"\n'
        f'tokens = ["sha256:{digest_of(name.encode())}"]\n'
    )


def listing(*namespaces: str) -> str:
    """A caller in each namespace that is called like it, and an operator in the last."""
    callers = [entry(name, role="compile", namespace=name) for name in namespaces]
    return "".join([f"namespaces = {list(namespaces)}\n", *callers, entry("ops", role="admin", namespace="dev")])


class Farm:
    """A farm with a caller in each namespace."""

    def __init__(self, store: ArtifactStore, pool: ScriptedPool, callers: dict[str, Calls]) -> None:
        self.store = store
        self.pool = pool
        self.callers = callers

    async def outcome(self, name: str) -> tuple[str, str]:
        """What a caller gets for the job: how it came about, and the namespace in which it lies."""
        finished = await self.callers[name].finish(sample_job())
        word = Outcome.Name(finished.outcome).removeprefix("OUTCOME_").lower()
        return word, finished.manifest.namespace


class Farms:
    """Starts farms."""

    def __init__(self, folder: Path) -> None:
        self.auth_file = folder / "callers.toml"
        self.auth_file.write_text(listing(*NAMESPACES))
        self.stack = AsyncExitStack()

    async def start(self, script: Script = compile_at_once, *, store: ArtifactStore | None = None) -> Farm:
        store = store or await open_store("memory:")
        pool = ScriptedPool(script, environments=(ENVIRONMENT, ENVIRONMENT))
        config = GatewayConfig(listen="127.0.0.1:0", auth_file=str(self.auth_file))
        gateway = await self.stack.enter_async_context(serving(pool=pool, store=store, config=config))
        callers = {
            name: await self.stack.enter_async_context(calling(gateway.address, token=name))
            for name in (*NAMESPACES, "ops")
        }
        return Farm(store, pool, callers)


@pytest.fixture
async def farms(tmp_path: Path) -> AsyncIterator[Farms]:
    farms = Farms(tmp_path)
    async with farms.stack:
        yield farms


@pytest.mark.parametrize("maker", NAMESPACES)
@pytest.mark.parametrize("reader", NAMESPACES)
async def test_artifacts_are_served_to_those_who_are_trusted_less_and_to_nobody_else(
    maker: str, reader: str, farms: Farms
) -> None:
    farm = await farms.start()
    assert await farm.outcome(maker) == ("compiled", maker)
    may_read = NAMESPACES.index(reader) >= NAMESPACES.index(maker)
    if may_read:
        assert (await farm.callers[reader].lookup(sample_job())).namespace == maker
        assert (await farm.callers[reader].inspect(KEY)).namespace == maker
    else:
        for ask in (farm.callers[reader].lookup(sample_job()), farm.callers[reader].inspect(KEY)):
            with pytest.raises(Refused) as refused:
                await ask
            assert refused.value.reason == NotStored.reason
        with pytest.raises(Refused, match="nothing is stored"):
            await farm.callers[reader].inspect(KEY[:20])
    assert await farm.outcome(reader) == (("hit", maker) if may_read else ("compiled", reader))
    assert len(farm.pool.assignments) == (1 if may_read else 2)


async def fail_its_check(assignment: Assignment, worker: str, on_phase: OnPhase) -> CompileFailure:
    """A script: the artifact is made, and differs from eager."""
    del assignment, worker, on_phase
    return CompileFailure(kind=FailureKind.FAILURE_KIND_VERIFICATION, message="output 0 differs from eager by 3")


async def test_what_checks_found_is_told_to_those_who_are_trusted_less_and_to_nobody_else(farms: Farms) -> None:
    farm = await farms.start(fail_its_check)
    await farm.callers["staging"].finish(sample_job())
    for name in ("staging", "dev", "ops"):
        (check,) = await farm.callers[name].checks(KEY)
        assert (check.namespace, check.failed.message) == ("staging", "output 0 differs from eager by 3")
    with pytest.raises(Refused) as refused:
        await farm.callers["prod"].checks(KEY)
    assert refused.value.reason == NotStored.reason


async def test_a_key_is_quarantined_for_those_who_are_trusted_less_and_for_nobody_else(farms: Farms) -> None:
    held = HeldCompiles()
    farm = await farms.start(held)
    staging = await farm.callers["staging"].watch(sample_job())
    for _ in range(2):
        (await held.next()).die("it was killed by SIGSEGV")
    await staging.finish()
    assert [await farm.outcome(name) for name in ("staging", "dev")] == [("quarantined", "")] * 2
    assert [entry.namespace for entry in (await farm.callers["ops"].list_jobs()).quarantined] == ["staging"]
    # One death in another namespace has nothing to do with those.
    prod = await farm.callers["prod"].watch(sample_job())
    (await held.next()).die("it was killed by SIGSEGV")
    (await held.next()).finish()
    assert (await prod.finish()).manifest.namespace == "prod"
    assert await farm.outcome("staging") == ("hit", "prod")


async def test_an_operator_takes_a_key_out_of_quarantine_in_every_namespace(farms: Farms) -> None:
    held = HeldCompiles()
    farm = await farms.start(held)
    for name in ("dev", "prod"):
        watch = await farm.callers[name].watch(sample_job())
        for _ in range(2):
            (await held.next()).die("it was killed by SIGSEGV")
        await watch.finish()
    assert await farm.callers["ops"].retry(KEY) == KEY
    assert (await farm.callers["ops"].list_jobs()).quarantined == []


async def test_a_callers_own_artifact_comes_first(farms: Farms) -> None:
    farm = await farms.start()
    for name in ("dev", "staging", "prod"):
        assert await farm.outcome(name) == ("compiled", name)
    for name in NAMESPACES:
        assert await farm.outcome(name) == ("hit", name)


async def test_who_is_trusted_less_joins_the_job_of_who_is_trusted_more(farms: Farms) -> None:
    held = HeldCompiles()
    farm = await farms.start(held)
    prod = await farm.callers["prod"].watch(sample_job())
    compile_ = await held.next()
    dev = await farm.callers["dev"].watch(sample_job())
    compile_.finish()
    for watch, outcome in ((prod, Outcome.OUTCOME_COMPILED), (dev, Outcome.OUTCOME_JOINED)):
        finished = await watch.finish()
        assert (finished.outcome, finished.manifest.namespace) == (outcome, "prod")
    assert len(held.started) == 1


async def test_who_is_trusted_more_does_not_join_the_job_of_who_is_trusted_less(farms: Farms) -> None:
    held = HeldCompiles()
    farm = await farms.start(held)
    dev = await farm.callers["dev"].watch(sample_job())
    first = await held.next()
    prod = await farm.callers["prod"].watch(sample_job())
    second = await held.next()
    jobs = (await farm.callers["ops"].list_jobs()).jobs
    assert [(job.key, job.namespace) for job in jobs] == [(KEY, "dev"), (KEY, "prod")]
    second.finish()
    assert (await prod.finish()).manifest.namespace == "prod"
    first.finish()
    assert (await dev.finish()).manifest.namespace == "dev"


async def test_an_operator_cancels_a_key_in_every_namespace(farms: Farms) -> None:
    held = HeldCompiles()
    farm = await farms.start(held)
    watches = []
    for name in ("dev", "prod"):
        watches.append(await farm.callers[name].watch(sample_job()))
        await held.next()
    assert await farm.callers["ops"].cancel(KEY) == KEY
    for watch in watches:
        with pytest.raises(Refused, match="an operator cancelled this job"):
            await watch.finish()


async def test_an_operator_may_look_into_every_namespace(farms: Farms) -> None:
    farm = await farms.start()
    for name in ("prod", "staging"):
        await farm.outcome(name)
    assert (await farm.callers["ops"].inspect(KEY[:20])).namespace == "prod"


async def test_what_was_stored_before_there_were_namespaces_is_served_to_nobody(farms: Farms) -> None:
    store = await open_store("memory:")
    async with serving(store=store) as gateway, calling(gateway.address) as calls:
        assert (await calls.finish(sample_job())).manifest.namespace == ""
    farm = await farms.start(store=store)
    assert (await farm.callers["ops"].inspect(KEY)).namespace == ""
    for name in ("prod", "dev"):
        assert await farm.outcome(name) == (("compiled", "prod") if name == "prod" else ("hit", "prod"))


async def test_a_worker_has_no_say_in_the_namespace(farms: Farms) -> None:
    async def pretend(assignment: Assignment, worker: str, on_phase: OnPhase) -> Artifact:
        artifact = artifact_of(assignment)
        artifact.manifest.namespace = "prod"
        artifact.manifest.signature.CopyFrom(Signature(key_id="x", value=b"y"))
        return artifact

    farm = await farms.start(pretend)
    finished = await farm.callers["dev"].finish(sample_job())
    assert finished.manifest.namespace == "dev"
    assert not finished.manifest.HasField("signature")


async def test_a_caller_that_is_moved_to_another_namespace_is_served_by_that(farms: Farms) -> None:
    farm = await farms.start()
    await farm.outcome("dev")
    entries = [entry("prod", role="compile", namespace=namespace) for namespace in ("prod", "dev")]
    moved = listing(*NAMESPACES).replace(*entries)
    await asyncio.to_thread(farms.auth_file.write_text, moved)
    assert await farm.outcome("prod") == ("hit", "dev")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('namespaces = ["Prod"]\n' + entry("a", role="read", namespace="Prod"), "namespace 'Prod': use at most 40"),
        ('namespaces = ["1"]\n' + entry("a", role="read", namespace="1"), "namespace '1': use at most 40"),
        ('namespaces = ["a", "a"]\n' + entry("a", role="read", namespace="a"), "the namespace a is there twice"),
        ('namespaces = ["prod"]\n' + entry("a", role="read", namespace="dev"), "namespace is 'dev': use one of prod"),
        (
            'namespaces = ["prod"]\n' + entry("a", role="read", namespace="b").replace('namespace = "b"\n', ""),
            "it has no namespace: use one of prod",
        ),
        (entry("a", role="read", namespace="dev"), "the list does not say which there are"),
    ],
)
def test_a_list_whose_namespaces_make_no_sense_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "callers.toml"
    path.write_text(text)
    with pytest.raises(CannotStart, match=message):
        read_directory(str(path))


async def test_what_was_tuned_is_listed_for_those_who_may_see_it() -> None:
    store = await open_store("memory:")
    for namespace in ("prod", "dev"):
        made = sample_artifact(sample_key(namespace))
        made.manifest.namespace = namespace
        made.manifest.libraries[0].builder = BUILDER_KERNEL
        made.manifest.sources.CopyFrom(made.manifest.program)
        await store.put_artifact(made.manifest, blobs=made.blobs)

    async def listed(*namespaces: str) -> list[str]:
        return sorted([manifest.namespace async for manifest in find_tuned(store, namespaces=namespaces)])

    assert await listed("prod") == ["prod"]
    assert await listed("dev", "prod") == ["dev", "prod"]
    assert await listed("") == []


async def test_how_long_devices_were_used_is_told_to_those_who_may_see_for_what(farms: Farms) -> None:
    farm = await farms.start()
    for name in ("staging", "dev"):
        await farm.callers[name].finish(sample_job(name))
    for name, seen in (
        ("prod", []),
        ("staging", ["staging"]),
        ("dev", ["dev", "staging"]),
        ("ops", ["dev", "staging"]),
    ):
        used = (await farm.callers[name].status()).device_seconds
        assert sorted({each.namespace for each in used}) == seen


async def test_nobody_waits_for_a_compile_of_another_gateway_for_those_who_are_trusted_less(tmp_path: Path) -> None:
    held, callers = HeldCompiles(), {"prod": "compile", "dev": "compile"}
    store = str(tmp_path / "store")
    async with (
        farm(tmp_path, callers, pool=ScriptedPool(held), store=await open_store(store)) as one,
        farm(tmp_path, callers, store=await open_store(store)) as other,
    ):
        waiting = asyncio.create_task(one["dev"].finish(sample_job()))
        begun = await held.next()
        async with asyncio.timeout(20):
            assert (await other["prod"].finish(sample_job())).manifest.namespace == "prod"
        begun.ended.set_result(artifact_of(begun.assignment))
        assert (await waiting).manifest.namespace == "dev"
