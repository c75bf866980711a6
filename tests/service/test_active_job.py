"""A job of the gateway: which states follow which, and who is told."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from compilefarm.core.errors import Draining, InternalError, JobCancelled, WorkerLost
from compilefarm.service.active_job import ActiveJob, JobObserver, State
from compilefarm.service.testing import ManualClock, active_job
from compilefarm.v1.job_pb2 import CompileFailure, FailureKind, Phase
from compilefarm.v1.manifest_pb2 import Manifest

STORED = Manifest(key="a key")
FAILED = CompileFailure(kind=FailureKind.FAILURE_KIND_COMPILE_ERROR, message="no lowering")


class Diary:
    """Observes a job, and keeps which state followed which, and why."""

    def __init__(self) -> None:
        self.changes: list[tuple[State, State]] = []
        self.causes: list[Exception | None] = []

    def changed(self, job: ActiveJob, *, before: State, cause: Exception | None) -> None:
        self.changes.append((before, job.state))
        self.causes.append(cause)


class Broken:
    """Observes a job, and is broken."""

    def changed(self, job: ActiveJob, *, before: State, cause: Exception | None) -> None:
        raise OSError("no space left")


def job_with(*observers: JobObserver, clock: ManualClock | None = None) -> ActiveJob:
    return active_job(clock=clock or ManualClock(), observers=observers)


async def compile_twice(job: ActiveJob) -> None:
    """The first worker is lost."""
    job.queue()
    job.start("worker-0")
    job.enter_phase(Phase.PHASE_COMPILING)
    job.queue(cause=WorkerLost("it was killed"))
    job.start("worker-1")
    job.enter_phase(Phase.PHASE_TUNING)
    job.store()
    job.finish(State.STORED, STORED)


async def test_observers_are_told_of_every_change_in_order() -> None:
    diary = Diary()
    job = job_with(diary)
    await job.begin(compile_twice)
    passed = [
        State.LOOKING_UP,
        State.QUEUED,
        State.RUNNING,
        State.QUEUED,
        State.RUNNING,
        State.STORING,
        State.STORED,
    ]
    assert diary.changes == list(pairwise(passed))
    assert [str(cause) for cause in diary.causes if cause] == ["it was killed"]
    assert (job.is_over, job.result, job.error) == (True, STORED, None)


async def test_stages_say_what_was_done_by_whom_and_when() -> None:
    clock = ManualClock()
    job = job_with(clock=clock)
    job.queue()
    clock.advance(2.0)
    job.start("worker-0")
    assert (job.stage.phase, job.stage.worker) == (Phase.PHASE_QUEUED, ""), "the worker has said nothing yet"
    job.enter_phase(Phase.PHASE_COMPILING)
    clock.advance(3.0)
    job.enter_phase(Phase.PHASE_VERIFYING)
    assert [(stage.phase, stage.worker, stage.since_seconds) for stage in job.stages] == [
        (Phase.PHASE_QUEUED, "", 0.0),
        (Phase.PHASE_COMPILING, "worker-0", 2.0),
        (Phase.PHASE_VERIFYING, "worker-0", 5.0),
    ]


@pytest.mark.parametrize(
    ("state", "result"), [(State.FOUND, STORED), (State.REMEMBERED, FAILED), (State.FAILED, FAILED)]
)
async def test_a_job_is_over_when_the_store_or_a_memory_answers(
    state: State, result: Manifest | CompileFailure
) -> None:
    job = job_with()

    async def answer(job: ActiveJob) -> None:
        job.finish(state, result)

    await job.begin(answer)
    assert (job.state, job.result, job.is_over, job.is_under_way) == (state, result, True, False)
    assert job.stages == [], "it never waited"


@pytest.mark.parametrize("state", [State.STORED, State.LOOKING_UP, State.RUNNING, State.STORING])
async def test_what_cannot_follow_is_a_defect_and_ends_the_job(state: State, caplog: pytest.LogCaptureFixture) -> None:
    job = job_with()

    async def jump(job: ActiveJob) -> None:
        job.finish(state, STORED)

    await job.begin(jump)
    assert job.state is State.ENDED
    assert isinstance(job.error, InternalError)
    assert "cannot go from State.LOOKING_UP" in caplog.text


@pytest.mark.parametrize("state", [State.FOUND, State.STORED, State.FAILED, State.REMEMBERED, State.ENDED])
async def test_nothing_follows_the_end(state: State) -> None:
    job = job_with()
    job.state = state
    with pytest.raises(AssertionError, match="cannot go from"):
        job.queue()


async def test_an_error_of_the_farm_ends_the_job_and_is_told_as_it_is() -> None:
    diary, refusal = Diary(), WorkerLost("three times")
    job = job_with(diary)

    async def refuse(job: ActiveJob) -> None:
        raise refusal

    await job.begin(refuse)
    assert (job.state, job.error, diary.causes) == (State.ENDED, refusal, [refusal])


async def test_a_defect_ends_the_job_and_its_traceback_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    job = job_with()

    async def fail(job: ActiveJob) -> None:
        raise ZeroDivisionError("the secret path /home/me")

    await job.begin(fail)
    assert isinstance(job.error, InternalError)
    assert "secret" not in str(job.error)
    assert "ZeroDivisionError: the secret path /home/me" in caplog.text


async def test_a_job_that_is_given_up_is_over_when_its_worker_is_free() -> None:
    has_started, is_freed, may_free = asyncio.Event(), asyncio.Event(), asyncio.Event()
    job = job_with()

    async def hold(job: ActiveJob) -> None:
        job.queue()
        job.start("worker-0")
        has_started.set()
        try:
            await asyncio.Event().wait()
        finally:
            is_freed.set()
            await may_free.wait()

    task = job.begin(hold)
    await has_started.wait()
    job.give_up(Draining("the service is going down"))
    await is_freed.wait()
    assert not job.is_over
    may_free.set()
    await asyncio.wait([task])
    assert job.state is State.ENDED
    assert isinstance(job.error, Draining)


async def test_a_job_can_be_given_up_before_its_task_has_run() -> None:
    diary = Diary()
    job = job_with(diary)
    task = job.begin(compile_twice)
    job.give_up(JobCancelled("nobody waited"))
    await asyncio.wait([task])
    assert diary.changes == [(State.LOOKING_UP, State.ENDED)]
    assert isinstance(job.error, JobCancelled)


async def test_an_observer_that_breaks_changes_no_result(caplog: pytest.LogCaptureFixture) -> None:
    diary = Diary()
    job = job_with(Broken(), diary)
    await job.begin(compile_twice)
    assert (job.state, job.result) == (State.STORED, STORED)
    assert diary.changes[-1] == (State.STORING, State.STORED), "those after it are told"
    assert "no space left" in caplog.text


async def test_those_who_wait_wake_at_every_change_and_else_after_a_while() -> None:
    clock = ManualClock()
    job = job_with(clock=clock)
    for change in (job.queue, lambda: job.start("worker-0"), lambda: job.enter_phase(Phase.PHASE_COMPILING)):
        waiting = asyncio.create_task(job.changes_within(10.0))
        await clock.wait_for_timer(10.0)
        change()
        assert await waiting
    waiting = asyncio.create_task(job.changes_within(10.0))
    await clock.wait_for_timer(10.0)
    clock.advance(10.0)
    assert not await waiting
