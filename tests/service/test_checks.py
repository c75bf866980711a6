"""Artifacts that are checked after they were served."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from compilefarm.core.artifacts import digest_of_manifest
from compilefarm.core.keys import key_of
from compilefarm.core.pool import Artifact, Assignment
from compilefarm.service.config import GatewayConfig
from compilefarm.service.testing import (
    ENVIRONMENT,
    Calls,
    HeldCompiles,
    ManualClock,
    Refused,
    ScriptedPool,
    artifact_of,
    calling,
    sample_job,
    serving,
    verify_at_once,
)
from compilefarm.store.files import Readable
from compilefarm.store.object_backend import ObjectBackend
from compilefarm.store.opening import build_store, open_store
from compilefarm.store.testing import FillingStore
from compilefarm.v1.compile_service_pb2 import PRIORITY_PREWARM, Outcome
from compilefarm.v1.environment_pb2 import Environment
from compilefarm.v1.job_pb2 import PHASE_QUEUED, PHASE_VERIFYING, CompileFailure, FailureKind
from compilefarm.v1.manifest_pb2 import VERIFY_TIME_AFTER, VERIFY_TIME_BEFORE, VERIFY_TIME_NEVER, Check

AFTER = GatewayConfig(listen="127.0.0.1:0", verify="after")
JOB = sample_job()
KEY = key_of(JOB).text
WRONG = CompileFailure(kind=FailureKind.FAILURE_KIND_VERIFICATION, message="output 0 differs from eager by 3")
Serve = Callable[[ScriptedPool], AbstractAsyncContextManager[Calls]]


@pytest.fixture
def farm(tmp_path: Path) -> Serve:
    """A farm that checks afterwards, whose store stays when it ends."""

    @asynccontextmanager
    async def run(pool: ScriptedPool) -> AsyncIterator[Calls]:
        store = await open_store(str(tmp_path))
        async with serving(pool=pool, store=store, config=AFTER) as gateway, calling(gateway.address) as calls:
            yield calls

    return run


class HeldChecks:
    """A script: checks wait for the test, and find what it says."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.found: asyncio.Future[CompileFailure | None] = asyncio.get_running_loop().create_future()

    async def __call__(self, artifact: Artifact) -> Artifact | CompileFailure:
        self.begun.set()
        return await asyncio.shield(self.found) or await verify_at_once(artifact)


async def fail(artifact: Artifact) -> CompileFailure:
    """A script: finds the artifact wrong."""
    del artifact
    return WRONG


async def checks_of(calls: Calls, key: str = KEY) -> list[Check]:
    """What was found, once something was."""
    while True:
        # Nothing is known of a key before its artifact is stored.
        with contextlib.suppress(Refused):
            if found := await calls.checks(key):
                return found


async def withdrawn(calls: Calls) -> None:
    while not (await calls.status()).counters.withdrawn:
        pass


async def test_the_answer_goes_out_before_the_check(farm: Serve) -> None:
    held = HeldChecks()
    pool = ScriptedPool(verify=held)
    async with farm(pool) as calls:
        served = await calls.finish(JOB)
        await held.begun.wait()
        assert served.manifest.verify_time == VERIFY_TIME_AFTER
        assert not served.manifest.HasField("verification")
        assert not pool.assignments[0].verify
        assert await calls.checks(KEY) == []
        held.found.set_result(None)
        (check,) = await checks_of(calls)
        assert check.manifest_digest == digest_of_manifest(served.manifest)
        assert (check.passed.load_seconds, check.seconds) == (0.125, 0.25)
        again = await calls.finish(JOB)
        assert (again.outcome, again.manifest) == (Outcome.OUTCOME_HIT, served.manifest)
        assert (await calls.status()).counters.withdrawn == 0
    assert pool.checked == [KEY]


async def test_an_artifact_lies_in_the_store_until_a_worker_verifies_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, held, read = await open_store(str(tmp_path)), HeldCompiles(), list[str]()
    reading = store.reading

    def note(digest: str) -> AbstractAsyncContextManager[Readable]:
        read.append(digest)
        return reading(digest)

    monkeypatch.setattr(store, "reading", note)
    pool = ScriptedPool(held)
    async with serving(pool=pool, store=store, config=AFTER) as gateway, calling(gateway.address) as calls:
        first = await calls.watch(JOB)
        running = await held.next()
        second = await calls.watch(sample_job("torch.cos"))
        await calls.wait_until_queued(1)
        running.finish()
        assert (await first.finish()).HasField("manifest")
        compile_ = await held.next()
        while not (await calls.list_jobs()).checks:
            pass
        assert (pool.checked, read) == ([], [])
        compile_.finish()
        await second.finish()
        assert (await checks_of(calls))[0].HasField("passed")
        assert read


async def test_an_artifact_that_fails_is_withdrawn_with_its_reason(farm: Serve) -> None:
    async with farm(ScriptedPool(verify=fail)) as calls:
        served = (await calls.finish(JOB)).manifest
        (check,) = await checks_of(calls)
        await withdrawn(calls)
        assert check.failed == WRONG
        assert check.manifest_digest == digest_of_manifest(served)
        with pytest.raises(Refused, match="nothing that fits is stored"):
            await calls.lookup(JOB)
        assert not (await calls.inspect(KEY)).key


async def test_the_next_artifact_of_its_key_is_checked_before_it_is_served(farm: Serve) -> None:
    async with farm(ScriptedPool(verify=fail)) as calls:
        await calls.finish(JOB)
        await withdrawn(calls)

    async def compile_wrongly(assignment: Assignment, *_: object) -> Artifact | CompileFailure:
        return WRONG if assignment.verify else artifact_of(assignment)

    # Also by a farm that was not there.
    pool = ScriptedPool(compile_wrongly)
    async with farm(pool) as calls:
        finished = await calls.finish(JOB)
        assert finished.failure == WRONG
        assert [check.failed.message for check in await calls.checks(KEY)] == [WRONG.message] * 2
        # Another key is not held to that.
        assert (await calls.finish(sample_job("torch.sin"))).manifest.verify_time == VERIFY_TIME_AFTER
    assert [assignment.verify for assignment in pool.assignments] == [True, False]


async def test_a_check_that_was_cut_short_is_done_when_the_artifact_is_next_asked_for(farm: Serve) -> None:
    held = HeldChecks()
    async with farm(ScriptedPool(verify=held)) as calls:
        await calls.finish(JOB)
        await held.begun.wait()
    pool = ScriptedPool()
    async with farm(pool) as calls:
        await calls.lookup(JOB)
        (check,) = await checks_of(calls)
        assert check.HasField("passed")
    assert pool.checked == [KEY]
    # And not again.
    pool = ScriptedPool()
    async with farm(pool) as calls:
        await calls.lookup(JOB)
        await calls.finish(sample_job("torch.sin"))
        await checks_of(calls, key_of(sample_job("torch.sin")).text)
    assert KEY not in pool.checked


async def test_a_check_that_cannot_be_done_is_begun_seldom_however_often_the_artifact_is_asked_for(
    farm: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    held = HeldChecks()
    async with farm(ScriptedPool(verify=held)) as calls:
        await calls.finish(JOB)
        await held.begun.wait()
    caplog.clear()

    def told() -> int:
        return caplog.text.count("its artifact is verified when it is next asked for")

    store, clock = await open_store(str(tmp_path)), ManualClock()
    pool = ScriptedPool(environments=[Environment(torch="2.11.0")])
    async with (
        serving(pool=pool, store=store, config=AFTER, clock=clock) as gateway,
        calling(gateway.address) as calls,
    ):
        for _ in range(20):
            await calls.lookup(JOB)
        assert told() == 1
        clock.advance(60.0)
        while told() < 2:
            await calls.lookup(JOB)


async def test_a_check_makes_room_for_an_interactive_job(farm: Serve) -> None:
    held = HeldChecks()
    pool = ScriptedPool(verify=held)
    async with farm(pool) as calls:
        await calls.finish(JOB)
        await held.begun.wait()
        # There is one worker, and the check has it.
        assert (await calls.finish(sample_job("torch.sin"))).HasField("manifest")


async def test_checks_are_listed_while_they_wait_and_while_they_are_done(farm: Serve) -> None:
    held, compiles = HeldChecks(), HeldCompiles()
    pool = ScriptedPool(compiles, verify=held)
    async with farm(pool) as calls:
        first = await calls.watch(JOB)
        compile_ = await compiles.next()
        second = await calls.watch(sample_job("torch.sin"))
        await calls.wait_until_queued(1)
        compile_.finish()
        await first.finish()
        # The worker has gone to the other job, since somebody waits for that.
        other = await compiles.next()
        (check,) = (await calls.list_jobs()).checks
        assert (check.key, check.phase, check.worker) == (KEY, PHASE_QUEUED, "")
        assert (check.priority, check.waiting_requests) == (PRIORITY_PREWARM, 0)
        other.finish()
        await second.finish()
        await held.begun.wait()
        checks = (await calls.list_jobs()).checks
        assert [(check.key, check.phase, check.worker) for check in checks] == [
            (KEY, PHASE_VERIFYING, "worker-0"),
            (key_of(sample_job("torch.sin")).text, PHASE_QUEUED, ""),
        ]
        held.found.set_result(None)
        while (await calls.list_jobs()).checks:
            pass


@pytest.mark.parametrize(
    ("verify", "time"), [("before", VERIFY_TIME_BEFORE), ("after", VERIFY_TIME_AFTER), ("off", VERIFY_TIME_NEVER)]
)
async def test_a_manifest_says_when_its_artifact_is_checked(verify: str, time: int) -> None:
    config = GatewayConfig(listen="127.0.0.1:0", verify=verify)  # type: ignore[arg-type]
    pool = ScriptedPool(environments=[ENVIRONMENT])
    async with serving(pool=pool, config=config) as gateway, calling(gateway.address) as calls:
        assert (await calls.finish(JOB)).manifest.verify_time == time
        assert [assignment.verify for assignment in pool.assignments] == [verify != "after"]


async def test_why_an_artifact_was_never_served_is_kept() -> None:
    async def compile_wrongly(*_: object) -> CompileFailure:
        return WRONG

    async with serving(pool=ScriptedPool(compile_wrongly)) as gateway, calling(gateway.address) as calls:
        assert (await calls.finish(JOB)).failure == WRONG
        (check,) = await calls.checks(KEY)
    assert (check.failed, check.manifest_digest) == (WRONG, "")


async def test_an_artifact_that_is_found_wrong_is_withdrawn_on_a_full_disk() -> None:
    """The reason could not be kept, and so the artifact was served on."""
    disk, held = FillingStore(), HeldChecks()
    store = await build_store(ObjectBackend(disk, location="/full"))
    async with (
        serving(pool=ScriptedPool(verify=held), store=store, config=AFTER) as gateway,
        calling(gateway.address) as calls,
    ):
        assert (await calls.finish(JOB)).HasField("manifest")
        await held.begun.wait()
        disk.full = True
        held.found.set_result(WRONG)
        await withdrawn(calls)
        assert await store.find_manifest(KEY, fresh=True) is None
