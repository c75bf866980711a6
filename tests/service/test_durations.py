"""How long jobs are expected to take, and to wait."""

from __future__ import annotations

import pytest

from compilefarm.core.keys import key_of
from compilefarm.core.pool import Artifact, Assignment
from compilefarm.service.durations import Durations, Kind, kind_of
from compilefarm.service.testing import (
    ENVIRONMENT,
    HeldCompiles,
    ManualClock,
    ScriptedPool,
    artifact_of,
    calling,
    sample_job,
    serving,
)
from compilefarm.service.testing.pool import OnPhase
from compilefarm.store.artifact_store import ArtifactStore
from compilefarm.store.opening import open_store
from compilefarm.v1.compile_service_pb2 import Priority
from compilefarm.v1.graph_pb2 import Value
from compilefarm.v1.job_pb2 import CompileFailure, FailureKind, Job, Phase
from compilefarm.v1.manifest_pb2 import Timing

KIND = Kind(platform="an H200", options="default", size=8)


def kind(job: Job) -> Kind:
    return kind_of(job, key=key_of(job))


def test_the_first_compile_sets_the_estimate_and_later_ones_move_it() -> None:
    durations = Durations()
    assert durations.estimate(KIND) == 60.0
    durations.note(KIND, seconds=10.0)
    assert durations.estimate(KIND) == 10.0
    durations.note(KIND, seconds=20.0)
    assert durations.estimate(KIND) == pytest.approx(13.0)
    for _ in range(50):
        durations.note(KIND, seconds=100.0)
    assert durations.estimate(KIND) == pytest.approx(100.0, rel=0.01)


def test_what_is_new_is_expected_to_take_as_long_as_what_is_nearest() -> None:
    durations = Durations()
    durations.note(KIND, seconds=10.0)
    durations.note(Kind(platform="an H200", options="max-autotune", size=8), seconds=400.0)
    durations.note(Kind(platform="a CPU", options="default", size=8), seconds=30.0)
    assert durations.estimate(Kind(platform="an H200", options="max-autotune", size=3)) == 400.0
    assert durations.estimate(Kind(platform="a CPU", options="max-autotune", size=8)) == 30.0
    assert 10.0 < durations.estimate(Kind(platform="an H200", options="another", size=8)) < 400.0
    assert 10.0 < durations.estimate(Kind(platform="a B200", options="default", size=8)) < 400.0


def test_what_a_stored_artifact_tells_counts_until_something_newer_is_known() -> None:
    durations = Durations()
    durations.note_earlier(KIND, seconds=5.0)
    assert durations.estimate(KIND) == 5.0
    durations.note_earlier(KIND, seconds=500.0)
    assert durations.estimate(KIND) == 5.0


def test_options_that_strangers_invent_do_not_fill_the_memory() -> None:
    durations = Durations()
    for number in range(10_000):
        durations.note(Kind(platform="an H200", options=f"invented {number}", size=8), seconds=1.0)
        durations.note(KIND, seconds=50.0)
    assert durations.estimate(KIND) == 50.0
    assert len(durations._averages) <= 4096


def test_the_kind_is_device_release_options_and_size() -> None:
    job = sample_job()
    same = sample_job("torch.sin")
    assert kind(job) == kind(same)
    larger, tuned, elsewhere = sample_job(), sample_job(), sample_job()
    for _ in range(10):
        larger.graph.nodes.add().call.CopyFrom(job.graph.nodes[1].call)
    tuned.options.inductor.add(name="max_autotune", value=Value(boolean=True))
    elsewhere.environment.cuda.name = "NVIDIA H200"
    assert len({kind(each) for each in (job, larger, tuned, elsewhere)}) == 4


async def test_the_wait_is_foretold_from_what_jobs_took() -> None:
    held, clock = HeldCompiles(), ManualClock()
    async with serving(pool=ScriptedPool(held), clock=clock) as gateway, calling(gateway.address) as calls:
        first = await calls.watch(sample_job("torch.f0"))
        compile_ = await held.next()
        clock.advance(20.0)
        compile_.finish()
        await first.finish()
        watches = [await calls.watch(sample_job("torch.f1"))]
        running = await held.next()
        clock.advance(5.0)
        told = []
        for number in (2, 3):
            watches.append(await calls.watch(sample_job(f"torch.f{number}")))
            told.append(await watches[-1].progress(Phase.PHASE_QUEUED))
        running.enter(Phase.PHASE_COMPILING)
        started = await watches[0].progress(Phase.PHASE_COMPILING)
        # What takes longer than it should is expected to end at any moment.
        clock.advance(18.0)
        again = await watches[2].progress(Phase.PHASE_QUEUED)
    assert [progress.estimated_wait_seconds for progress in told] == [15.0, 35.0]
    assert {progress.estimated_compile_seconds for progress in told} == {20.0}
    assert (started.estimated_wait_seconds, started.jobs_ahead) == (0.0, 0)
    assert again.estimated_wait_seconds == 20.0


async def test_jobs_of_several_workers_are_foretold_to_run_side_by_side() -> None:
    held, clock = HeldCompiles(), ManualClock()
    pool = ScriptedPool(held, environments=[ENVIRONMENT] * 2)
    async with serving(pool=pool, clock=clock) as gateway, calling(gateway.address) as calls:
        watches, waits = [], []
        for number in range(6):
            watches.append(await calls.watch(sample_job(f"torch.f{number}")))
            queued = await watches[-1].progress(Phase.PHASE_QUEUED)
            waits.append(queued.estimated_wait_seconds)
    assert waits == [0.0, 0.0, 60.0, 60.0, 120.0, 120.0]


async def test_a_prewarm_that_runs_is_nothing_to_wait_for() -> None:
    held, clock = HeldCompiles(), ManualClock()
    async with serving(pool=ScriptedPool(held), clock=clock) as gateway, calling(gateway.address) as calls:
        for number in range(2):
            await calls.watch(sample_job(f"torch.p{number}"), priority=Priority.PRIORITY_PREWARM)
        await calls.wait_until_queued(1)
        background = await calls.watch(sample_job("torch.b"), priority=Priority.PRIORITY_BACKGROUND)
        interactive = await calls.watch(sample_job("torch.i"))
        waits = [
            (await watch.progress(Phase.PHASE_QUEUED)).estimated_wait_seconds for watch in (background, interactive)
        ]
    assert waits == [60.0, 0.0]


async def test_compiles_that_fail_teach_nothing() -> None:
    held, clock = HeldCompiles(), ManualClock()
    async with serving(pool=ScriptedPool(held), clock=clock) as gateway, calling(gateway.address) as calls:
        first = await calls.watch(sample_job())
        compile_ = await held.next()
        clock.advance(1.0)
        compile_.finish(CompileFailure(kind=FailureKind.FAILURE_KIND_COMPILE_ERROR, message="no lowering"))
        await first.finish()
        second = await calls.watch(sample_job())
        assert (await second.progress(Phase.PHASE_QUEUED)).estimated_compile_seconds == 60.0


async def test_a_farm_that_was_restarted_learns_from_what_is_stored() -> None:
    async def compile_slowly(assignment: Assignment, worker: str, on_phase: OnPhase) -> Artifact:
        artifact = artifact_of(assignment)
        for phase, seconds in ((Phase.PHASE_COMPILING, 30.0), (Phase.PHASE_TUNING, 12.0)):
            artifact.manifest.timings.append(Timing(phase=phase, seconds=seconds))
        return artifact

    store: ArtifactStore = await open_store("memory:")
    async with serving(store=store, pool=ScriptedPool(compile_slowly)) as gateway, calling(gateway.address) as calls:
        await calls.finish(sample_job("torch.relu"))
    held = HeldCompiles()
    async with serving(store=store, pool=ScriptedPool(held)) as gateway, calling(gateway.address) as calls:
        await calls.finish(sample_job("torch.relu"))
        watch = await calls.watch(sample_job("torch.sin"))
        assert (await watch.progress(Phase.PHASE_QUEUED)).estimated_compile_seconds == 42.0
