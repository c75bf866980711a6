"""A supervisor with scripted children: what its caller sees, and that the next job runs."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from compilefarm.core.digests import digest_of
from compilefarm.core.errors import InvalidRequest, WorkerLost
from compilefarm.core.pool import Artifact, Assignment
from compilefarm.v1.admin_service_pb2 import WORKER_STATE_FAILED, WORKER_STATE_IDLE
from compilefarm.v1.job_pb2 import (
    FAILURE_KIND_COMPILE_ERROR,
    FAILURE_KIND_CRASHED,
    FAILURE_KIND_OUT_OF_MEMORY,
    FAILURE_KIND_OUTPUT_TOO_LARGE,
    FAILURE_KIND_TIMEOUT,
    FAILURE_KIND_VERIFICATION,
    PHASE_COMPILING,
    PHASE_VERIFYING,
    CompileFailure,
    Job,
    Phase,
)
from compilefarm.worker.supervisor import SlotSettings, Supervisor
from compilefarm.worker.testing import ENVIRONMENT, ORDINARY, PROGRAM, child_settings
from tests.children.jobs import JOB, hanging_job, supervising
from tests.processes import is_alive


def checking(
    script: str, *limits: str, output_bytes: int = 1 << 30, answer_seconds: float = 10.0, **settings: Any
) -> AbstractAsyncContextManager[Supervisor]:
    """A supervisor whose children, which compile and check, follow a script."""
    child = child_settings(script, *limits, output_bytes=output_bytes, answer_seconds=answer_seconds)
    return supervising(child, **{"verifier": child} | settings)


async def run(supervisor: Supervisor) -> Artifact | CompileFailure:
    return await supervisor.run(JOB, on_phase=lambda _: None)


async def the_next_job_is_done(supervisor: Supervisor) -> bool:
    """Whether the slot still does what it is for. The next child may take its time to start, which the limits count."""
    assert supervisor._verifier is not None
    await asyncio.gather(supervisor._compiler.attempted(), supervisor._verifier.attempted())
    ordinary = Assignment(key="the next key", job=ORDINARY)
    artifact = await supervisor.run(ordinary, on_phase=lambda _: None)
    return isinstance(artifact, Artifact) and artifact.manifest.HasField("verification")


async def test_a_verifier_that_was_stopped_holds_no_job() -> None:
    async with checking("compile", answer_seconds=1.0) as supervisor:
        assert supervisor._verifier is not None
        await supervisor._verifier.attempted()
        (stopped,) = supervisor._verifier._children
        os.kill(stopped.pid, signal.SIGSTOP)
        # Well before a check is given up that takes too long.
        async with asyncio.timeout(30):
            assert await the_next_job_is_done(supervisor)
        assert not is_alive(stopped.pid)


async def test_a_job_gives_an_artifact_that_was_checked() -> None:
    phases: list[Phase.ValueType] = []
    async with checking("compile") as supervisor:
        assert supervisor.view().environment == ENVIRONMENT
        for _ in range(2):
            artifact = await supervisor.run(JOB, on_phase=phases.append)
            assert isinstance(artifact, Artifact)
            assert artifact.blobs == {digest_of(PROGRAM): PROGRAM}
            assert artifact.manifest.verification.load_seconds == 0.25
            assert artifact.manifest.worker == "slot"
            assert artifact.manifest.environment == ENVIRONMENT
    assert phases == [PHASE_COMPILING, PHASE_VERIFYING] * 2


async def test_without_a_check_there_is_no_word_of_one() -> None:
    async with checking("compile", verifier=None) as supervisor:
        artifact = await run(supervisor)
    assert isinstance(artifact, Artifact)
    assert not artifact.manifest.HasField("verification")


async def test_a_check_may_come_later() -> None:
    unchecked = Assignment(key="a key", job=Job(), verify=False)
    async with checking("compile") as supervisor:
        artifact = await supervisor.run(unchecked, on_phase=lambda _: None)
        assert isinstance(artifact, Artifact)
        assert not artifact.manifest.HasField("verification")
        checked = await supervisor.verify(unchecked, artifact)
        assert isinstance(checked, Artifact)
        assert checked.manifest.verification.load_seconds == 0.25
        assert [timing.phase for timing in checked.manifest.timings] == [PHASE_VERIFYING]
        assert supervisor.view().state == WORKER_STATE_IDLE


@pytest.mark.parametrize("script", ["fail-verification", "die-in-verification"])
async def test_a_later_check_fails_as_an_earlier_one(script: str) -> None:
    unchecked = Assignment(key="a key", job=Job(), verify=False)
    async with checking(script) as supervisor:
        artifact = await supervisor.run(unchecked, on_phase=lambda _: None)
        assert isinstance(artifact, Artifact)
        failure = await supervisor.verify(unchecked, artifact)
        assert failure == await run(supervisor)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("die", "SIGSEGV"),
        ("die", "the last words"),
        ("exit", "status 3"),
        ("garbage", "something else"),
        ("half-a-message", "within a message"),
        ("name-another-blob", "did not send"),
        ("lie-about-digest", "did not send"),
    ],
)
async def test_a_lost_child_is_said_and_the_slot_goes_on(script: str, words: str) -> None:
    async with checking(script) as supervisor:
        for _ in range(2):
            with pytest.raises(WorkerLost, match=words):
                await run(supervisor)
        assert supervisor.view().state in (WORKER_STATE_IDLE, WORKER_STATE_FAILED)


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        ("fail", FAILURE_KIND_COMPILE_ERROR),
        ("fail-verification", FAILURE_KIND_VERIFICATION),
        ("die-in-verification", FAILURE_KIND_CRASHED),
    ],
)
async def test_a_failure_is_a_result(script: str, kind: int) -> None:
    async with checking(script) as supervisor:
        failure = await run(supervisor)
    assert isinstance(failure, CompileFailure)
    assert failure.kind == kind
    assert failure.message


async def test_a_forbidden_request_is_no_result() -> None:
    async with checking("refuse") as supervisor:
        with pytest.raises(InvalidRequest, match="the script says so"):
            await run(supervisor)


async def test_a_compile_that_hangs_is_ended_and_the_next_job_is_done() -> None:
    async with checking("hang", compile_seconds=2.0) as supervisor:
        failure = await run(supervisor)
        assert isinstance(failure, CompileFailure)
        assert failure.kind == FAILURE_KIND_TIMEOUT
        assert "longer than 2 s" in failure.message
        assert "--compile-timeout" in failure.message
        assert supervisor.view().state == WORKER_STATE_IDLE
        assert await the_next_job_is_done(supervisor)


async def test_a_check_that_hangs_is_ended_and_says_nothing_against_the_artifact() -> None:
    async with checking("hang-in-verification", verify_seconds=2.0) as supervisor:
        failure = await run(supervisor)
        assert isinstance(failure, CompileFailure)
        assert failure.kind == FAILURE_KIND_TIMEOUT
        assert failure.message.startswith("the verification of the artifact took longer than 2 s")
        assert supervisor.view().state == WORKER_STATE_IDLE
        assert await the_next_job_is_done(supervisor)


# What a child may take before it has to fail: enough to name its own failure, which takes torch.
MEMORY = f"--memory-limit={4 * 10**9}"


@pytest.mark.parametrize(
    ("script", "limits", "kind", "words", "jobs"),
    [
        # These take torch to name their failure: one such job is enough.
        ("allocate", (MEMORY,), FAILURE_KIND_OUT_OF_MEMORY, "Cannot allocate memory", 1),
        ("write-a-large-file", ("--file-limit=50000000",), FAILURE_KIND_OUTPUT_TOO_LARGE, "File too large", 1),
        ("abort-without-memory", (), FAILURE_KIND_OUT_OF_MEMORY, "SIGABRT", 3),
        ("say-too-much", (), FAILURE_KIND_OUTPUT_TOO_LARGE, "larger than 50000000 bytes", 3),
    ],
)
async def test_what_takes_too_much_fails_by_name_and_the_next_job_is_done(
    script: str, limits: tuple[str, ...], kind: int, words: str, jobs: int
) -> None:
    async with checking(script, *limits, output_bytes=50_000_000) as supervisor:
        for _ in range(jobs):
            failure = await run(supervisor)
            assert isinstance(failure, CompileFailure)
            assert failure.kind == kind
            assert words in failure.message
        assert supervisor.view().state == WORKER_STATE_IDLE
        assert await the_next_job_is_done(supervisor)


async def test_cancelling_ends_the_child_and_all_it_started() -> None:
    async with checking("hang-with-grandchild") as supervisor:
        job = await hanging_job(supervisor)
        (child,) = [child for child in supervisor._compiler._children if "grandchild" in child.log_tail]
        grandchild = int(child.log_tail.split()[-1])
        assert is_alive(child.pid)
        assert is_alive(grandchild)
        job.cancel()
        with pytest.raises(asyncio.CancelledError):
            await job
        assert not is_alive(child.pid)
        assert supervisor.view().state == WORKER_STATE_IDLE
        # Killed with its group; the kernel reaps it in its own time, but it runs no more.
        assert not is_alive(grandchild)


async def test_closing_ends_a_running_job() -> None:
    async with checking("hang") as supervisor:
        job = await hanging_job(supervisor)
        pids = [child.pid for child in supervisor._compiler._children]
    with pytest.raises((WorkerLost, asyncio.CancelledError)):
        await job
    assert not any(map(is_alive, pids))


@pytest.mark.parametrize(
    ("script", "start_seconds", "words"),
    [("die-before-ready", 60, "SIGSEGV"), ("never-ready", 0.5, "not ready after")],
)
async def test_a_child_that_cannot_start_is_a_problem(script: str, start_seconds: float, words: str) -> None:
    child = child_settings(script, start_seconds=start_seconds)
    async with supervising(child) as supervisor:
        view = supervisor.view()
    assert view.state == WORKER_STATE_FAILED
    assert view.problem is not None
    assert words in view.problem


async def test_a_worker_that_cannot_check_takes_no_job() -> None:
    works, broken = child_settings("compile"), child_settings("die-before-ready")
    supervisor = Supervisor(SlotSettings(name="slot", compiler=works, verifier=broken))
    await supervisor.start()
    assert supervisor._verifier is not None
    await supervisor._verifier.attempted()
    view = supervisor.view()
    await supervisor.close()
    await asyncio.gather(works.server.close(), broken.server.close())
    assert view.state == WORKER_STATE_FAILED
    assert "the last words" in (view.problem or "")


async def test_the_next_job_finds_both_processes_ready() -> None:
    async with checking("compile") as supervisor:
        await run(supervisor)
        assert supervisor._verifier is not None
        await asyncio.gather(supervisor._compiler.attempted(), supervisor._verifier.attempted())
        assert supervisor.view().is_warm


async def test_a_child_knows_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    async with checking("print-variables", verifier=None) as supervisor:
        artifact = await run(supervisor)
    assert isinstance(artifact, Artifact)
    (said,) = artifact.blobs.values()
    assert b"hush" not in said
    assert b"TORCHINDUCTOR_CACHE_DIR=" in said
    assert os.environ["HOME"].encode() + b"\n" not in said


async def test_a_job_does_not_wait_for_a_child_that_cannot_start() -> None:
    child = child_settings("die-before-ready")
    async with supervising(child) as supervisor:
        with pytest.raises(WorkerLost, match="the last words"):
            await run(supervisor)
