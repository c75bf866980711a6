"""Graphs that end the processes that compile them: not tried for a while."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from obstore.store import MemoryStore

from compilefarm.core.keys import key_of
from compilefarm.service.config import GatewayConfig
from compilefarm.service.quarantine import Quarantine
from compilefarm.service.testing import (
    ENVIRONMENT,
    Calls,
    HeldCompiles,
    ManualClock,
    Refused,
    ScriptedPool,
    calling,
    sample_job,
    serving,
)
from compilefarm.store.backend import Backend, StoredObject, WrappingBackend
from compilefarm.store.layout import remembered_path
from compilefarm.store.object_backend import ObjectBackend
from compilefarm.store.testing import FillingStore, sample_key
from compilefarm.v1.compile_service_pb2 import Finished, Outcome
from compilefarm.v1.gateways_pb2 import QuarantineRecord
from compilefarm.v1.job_pb2 import CompileFailure, FailureKind, Refusal

HOUR = 3600.0
CONFIG = GatewayConfig(listen="127.0.0.1:0", quarantine_seconds=HOUR)
JOB = sample_job()
KEY = key_of(JOB).text
A, B = sample_key("a"), sample_key("b")


@pytest.fixture
def held() -> HeldCompiles:
    return HeldCompiles()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def calls(held: HeldCompiles, clock: ManualClock) -> AsyncIterator[Calls]:
    pool = ScriptedPool(held, environments=[ENVIRONMENT] * 2)
    async with serving(pool=pool, clock=clock, config=CONFIG) as gateway, calling(gateway.address) as calls:
        yield calls


async def poison(calls: Calls, held: HeldCompiles) -> Finished:
    """Has two processes die of the job, and returns what is said of it."""
    watch = await calls.watch(JOB)
    for _ in range(2):
        (await held.next()).die("it was killed by SIGSEGV\nthe last words")
    return await watch.finish()


async def test_the_second_death_ends_the_job_with_its_reason(calls: Calls, held: HeldCompiles) -> None:
    finished = await poison(calls, held)
    assert finished.outcome == Outcome.OUTCOME_COMPILED
    failure = finished.failure
    assert failure.kind == FailureKind.FAILURE_KIND_CRASHED
    assert "2 processes died of this graph, the last one so: worker" in failure.message
    assert "it was killed by SIGSEGV. It is quarantined until 2026-01-01 01:00 UTC" in failure.message
    assert f"`compilefarm retry {KEY}`" in failure.message
    assert failure.log_tail == "the last words"
    assert len({each.worker for each in held.started}) == 2


async def test_whoever_asks_is_told_at_once_until_the_time_is_over(
    calls: Calls, held: HeldCompiles, clock: ManualClock
) -> None:
    failure = (await poison(calls, held)).failure
    for _ in range(2):
        events = await calls.compile(JOB)
        assert [event.WhichOneof("event") for event in events] == ["accepted", "finished"]
        assert events[-1].finished.outcome == Outcome.OUTCOME_QUARANTINED
        assert events[-1].finished.failure == failure
    other = await calls.watch(sample_job("torch.sin"))
    (await held.next()).finish()
    assert (await other.finish()).HasField("manifest")
    status = await calls.status()
    assert (status.counters.quarantined, status.quarantined_keys) == (2, 1)
    clock.advance(HOUR)
    assert (await calls.status()).quarantined_keys == 0
    again = await calls.watch(JOB)
    (await held.next()).finish()
    assert (await again.finish()).outcome == Outcome.OUTCOME_COMPILED


async def test_a_key_that_is_retried_is_compiled_by_the_next_request(calls: Calls, held: HeldCompiles) -> None:
    await poison(calls, held)
    (entry,) = (await calls.list_jobs()).quarantined
    assert (entry.key, entry.deaths, entry.failure.kind) == (KEY, 2, FailureKind.FAILURE_KIND_CRASHED)
    assert entry.until.seconds - entry.since.seconds == HOUR
    assert await calls.retry(KEY[:6]) == KEY
    assert not (await calls.list_jobs()).quarantined
    again = await calls.watch(JOB)
    (await held.next()).finish()
    assert (await again.finish()).outcome == Outcome.OUTCOME_COMPILED


async def test_what_is_not_quarantined_cannot_be_retried(calls: Calls) -> None:
    with pytest.raises(Refused, match="is quarantined; `compilefarm jobs` lists them") as refused:
        await calls.retry(KEY)
    assert (refused.value.status, refused.value.reason) == ("NOT_FOUND", "no_such_job")


async def test_a_death_is_remembered_though_the_job_was_given_up(calls: Calls, held: HeldCompiles) -> None:
    first = await calls.watch(JOB)
    (await held.next()).die()
    await held.next()
    await calls.cancel(KEY)
    with pytest.raises(Refused, match="an operator cancelled this job"):
        await first.finish()
    second = await calls.watch(JOB)
    (await held.next()).die()
    assert (await second.finish()).failure.kind == FailureKind.FAILURE_KIND_CRASHED
    assert (await calls.finish(JOB)).outcome == Outcome.OUTCOME_QUARANTINED


async def test_an_artifact_that_ends_its_verifier_twice_is_quarantined(calls: Calls, held: HeldCompiles) -> None:
    crash = CompileFailure(kind=FailureKind.FAILURE_KIND_CRASHED, message="the artifact ended the process that ran it")
    for _ in range(2):
        watch = await calls.watch(JOB)
        (await held.next()).finish(crash)
        assert (await watch.finish()).failure == crash
    finished = await calls.finish(JOB)
    assert finished.outcome == Outcome.OUTCOME_QUARANTINED
    assert "the artifact ended the process that ran it" in finished.failure.message


@pytest.mark.parametrize("kind", [FailureKind.FAILURE_KIND_COMPILE_ERROR, FailureKind.FAILURE_KIND_OUT_OF_MEMORY])
async def test_a_process_that_lives_to_tell_of_a_failure_clears_the_key(
    calls: Calls, held: HeldCompiles, kind: FailureKind.ValueType
) -> None:
    for _ in range(2):
        watch = await calls.watch(JOB)
        (await held.next()).die()
        (await held.next()).finish(CompileFailure(kind=kind, message="no"))
        assert (await watch.finish()).failure.kind == kind
    assert (await calls.status()).quarantined_keys == 0


async def test_workers_that_vanish_otherwise_are_not_held_against_a_key(calls: Calls, held: HeldCompiles) -> None:
    watch = await calls.watch(JOB)
    for _ in range(2):
        (await held.next()).lose()
    (await held.next()).finish()
    assert (await watch.finish()).outcome == Outcome.OUTCOME_COMPILED


def quarantine_in(medium: MemoryStore, *, clock: ManualClock, seconds: float = HOUR, release: str = "1") -> Quarantine:
    """The quarantine of one of the gateways on a store."""
    backend = ObjectBackend(medium, location="memory:")
    return Quarantine(backend, clock=clock, seconds=seconds, farm_version=release)


async def test_single_deaths_are_forgotten_after_the_same_time() -> None:
    clock = ManualClock()
    quarantine = quarantine_in(MemoryStore(), clock=clock, seconds=10.0)
    assert await quarantine.note_death(A, namespace="", cause="no memory") is None
    clock.advance(6.0)
    assert await quarantine.note_death(B, namespace="", cause="no memory") is None
    clock.advance(6.0)
    assert await quarantine.note_death(A, namespace="", cause="no memory") is None
    kept = await quarantine.note_death(B, namespace="", cause="no memory")
    assert kept is not None
    assert [entry.key for entry in await quarantine.all()] == [B]
    clock.advance(9.0)
    assert await quarantine.find(B, namespaces=[""], hints=[]) == kept
    clock.advance(1.0)
    assert await quarantine.find(B, namespaces=[""], hints=[]) is None


async def test_what_a_gateway_noted_whose_clock_was_years_ahead_counts_for_nothing() -> None:
    medium, ahead = MemoryStore(), ManualClock()
    ahead.advance(1e9)
    quarantine = quarantine_in(medium, clock=ahead)
    for _ in range(2):
        await quarantine.note_death(A, namespace="", cause="no memory")
    assert await quarantine.find(A, namespaces=[""], hints=[]) is not None
    assert await quarantine_in(medium, clock=ManualClock()).find(A, namespaces=[""], hints=[]) is None


WRONG = CompileFailure(
    kind=FailureKind.FAILURE_KIND_VERIFICATION,
    message="output 0 differs from eager by 3",
    refusal=Refusal(result="output 0", error=3.0, eager_error=0.1, allowed_error=0.3, inputs_seed=1),
)


async def refuse(calls: Calls, held: HeldCompiles) -> Finished:
    """Has an artifact of the job fail its check, and returns what is said of it."""
    watch = await calls.watch(JOB)
    (await held.next()).finish(WRONG)
    return await watch.finish()


async def test_the_second_pod_hears_of_a_refusal_without_another_compile(calls: Calls, held: HeldCompiles) -> None:
    assert (await refuse(calls, held)).failure == WRONG
    finished = await calls.finish(JOB)
    assert finished.outcome == Outcome.OUTCOME_QUARANTINED
    assert finished.failure.message.startswith(
        "output 0 differs from eager by 3. It is quarantined until 2026-01-01 01:00"
    )
    assert finished.failure.refusal == WRONG.refusal
    assert len(held.started) == 1


@pytest.mark.parametrize("kind", ["NOT_SERIALIZABLE", "OUTPUT_TOO_LARGE", "UNEXPECTED_SOURCE"])
async def test_what_another_compile_would_end_in_is_not_compiled_for_the_second_pod(
    calls: Calls, held: HeldCompiles, kind: str
) -> None:
    watch = await calls.watch(JOB)
    failure = CompileFailure(kind=FailureKind.Value(f"FAILURE_KIND_{kind}"), message="it cannot be shipped")
    (await held.next()).finish(failure)
    assert (await watch.finish()).failure == failure
    assert (await calls.finish(JOB)).outcome == Outcome.OUTCOME_QUARANTINED
    assert len(held.started) == 1
    (entry,) = (await calls.list_jobs()).quarantined
    # No artifact failed a check.
    assert not entry.refused


async def test_a_refusal_is_forgotten_after_a_while(calls: Calls, held: HeldCompiles, clock: ManualClock) -> None:
    await refuse(calls, held)
    clock.advance(HOUR)
    again = await calls.watch(JOB)
    (await held.next()).finish()
    assert (await again.finish()).outcome == Outcome.OUTCOME_COMPILED


async def test_a_refusal_is_a_report_of_a_defect(calls: Calls, held: HeldCompiles) -> None:
    await refuse(calls, held)
    (entry,) = (await calls.list_jobs()).quarantined
    assert (entry.key, entry.refused, entry.deaths, entry.failure.refusal) == (KEY, True, 0, WRONG.refusal)
    (check,) = await calls.checks(KEY)
    assert (check.request, check.failed) == (JOB, WRONG)
    assert (await calls.status()).counters.failed_checks == 1
    assert await calls.retry(KEY[:6]) == KEY
    again = await calls.watch(JOB)
    (await held.next()).finish()
    assert (await again.finish()).outcome == Outcome.OUTCOME_COMPILED


async def test_failures_of_one_namespace_do_not_push_out_those_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compilefarm.service.quarantine.MOST_KEPT", 20)
    quarantine, keys = quarantine_in(MemoryStore(), clock=ManualClock()), [sample_key(str(n)) for n in range(30)]
    failure = CompileFailure(kind=FailureKind.FAILURE_KIND_NOT_SERIALIZABLE, message="no")
    await quarantine.note_refusal(KEY, namespace="prod", hints=(), failure=failure)
    for key in keys:
        await quarantine.note_refusal(key, namespace="greedy", hints=(), failure=failure)
    assert len(await quarantine.all()) == 20
    assert await quarantine.find(KEY, namespaces=["prod"], hints=()) is not None
    assert await quarantine.find(keys[0], namespaces=["greedy"], hints=()) is None
    assert await quarantine.find(keys[-1], namespaces=["greedy"], hints=()) is not None


async def test_what_one_gateway_has_learned_is_known_to_all_of_them_and_after_a_restart() -> None:
    medium, clock = MemoryStore(), ManualClock()
    one, other = (quarantine_in(medium, clock=clock) for _ in range(2))
    assert await one.note_death(A, namespace="", cause="no memory") is None
    clock.advance(1.0)
    kept = await other.note_death(A, namespace="", cause="SIGSEGV\nlast words")
    assert kept is not None
    assert (kept.deaths, kept.failure.log_tail) == (2, "last words")
    for each in (one, other, quarantine_in(medium, clock=clock)):
        assert await each.find(A, namespaces=[""], hints=[]) == kept
        assert await each.all() == [kept]
    assert await quarantine_in(medium, clock=clock, release="2").find(A, namespaces=[""], hints=[]) is None
    await one.release(A)
    for each in (one, other):
        assert await each.find(A, namespaces=[""], hints=[]) is None
    assert medium.list().collect() == []


async def test_a_record_of_a_time_beyond_the_calendar_keeps_nobody_from_others() -> None:
    medium, clock = MemoryStore(), ManualClock()
    failure = CompileFailure(kind=FailureKind.FAILURE_KIND_NOT_SERIALIZABLE, message="no")
    record = QuarantineRecord(key=A, failure=failure, farm_version="1", until=Timestamp(seconds=2**40))
    medium.put(remembered_path(A, digest="0" * 64), record.SerializeToString())
    quarantine = quarantine_in(medium, clock=clock)
    await quarantine.note_refusal(B, namespace="", hints=(), failure=failure)
    assert await quarantine.find(A, namespaces=[""], hints=()) is None
    assert [entry.key for entry in await quarantine.all()] == [B]


async def test_a_compile_that_succeeds_clears_its_key_of_deaths_for_all_gateways() -> None:
    medium, clock = MemoryStore(), ManualClock()
    one, other = (quarantine_in(medium, clock=clock) for _ in range(2))
    await one.note_death(A, namespace="", cause="no memory")
    assert await other.find(A, namespaces=[""], hints=[]) is None
    await other.note_survival(A, namespace="")
    assert await one.note_death(A, namespace="", cause="no memory") is None


async def test_a_store_that_takes_nothing_costs_others_the_knowledge_and_this_gateway_none() -> None:
    medium, clock = FillingStore(), ManualClock()
    quarantine = quarantine_in(medium, clock=clock)  # type: ignore[arg-type]
    medium.full = True
    await quarantine.note_death(A, namespace="", cause="no memory")
    assert await quarantine.note_death(A, namespace="", cause="no memory") is not None
    assert await quarantine.find(A, namespaces=[""], hints=[]) is not None
    clock.advance(HOUR)
    assert await quarantine.find(A, namespaces=[""], hints=[]) is None


class Listed(WrappingBackend):
    """A backend that counts how often it is listed."""

    def __init__(self) -> None:
        super().__init__(ObjectBackend(MemoryStore(), location="memory:"))
        self.listings = 0

    def objects(self, folder: str) -> AsyncIterator[StoredObject]:
        self.listings += 1
        return super().objects(folder)


async def noted(backend: Backend, *, keys: int, clock: ManualClock) -> Quarantine:
    """A quarantine that has noted the failures of so many keys."""
    quarantine = Quarantine(backend, clock=clock, seconds=HOUR, farm_version="1")
    for number in range(keys):
        await quarantine.note_refusal(sample_key(str(number)), namespace="", hints=[], failure=CompileFailure())
    return quarantine


async def test_those_who_ask_for_the_state_of_a_farm_have_failures_counted_once(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each had all of them listed and copied: with 4,900 others waited for three seconds."""
    backend = Listed()
    quarantine = await noted(backend, keys=30, clock=clock)
    monkeypatch.setattr(quarantine, "_describe", lambda _: pytest.fail("it was copied to be counted"))
    backend.listings = 0
    assert await asyncio.gather(*(quarantine.count() for _ in range(50))) == [30] * 50
    assert await quarantine.count() == 30
    assert backend.listings == 1
    await quarantine.note_refusal(A, namespace="", hints=[], failure=CompileFailure())
    assert await quarantine.count() == 31
    clock.advance(HOUR)
    assert await quarantine.count() == 0


async def test_no_more_is_read_than_is_kept_however_much_lies_in_the_store(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = ObjectBackend(MemoryStore(), location="memory:")
    await noted(backend, keys=20, clock=clock)
    monkeypatch.setattr("compilefarm.service.quarantine.MOST_KEPT", 5)
    monkeypatch.setattr("compilefarm.service.quarantine._MOST_OF_KEY", 2)
    other = Quarantine(backend, clock=clock, seconds=HOUR, farm_version="1")
    assert await other.count() == 5
    found = [await other.find(sample_key(str(number)), namespaces=[""], hints=[]) for number in range(20)]
    assert None not in found


class Read(WrappingBackend):
    """A backend that counts what is read of it."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.reads = 0

    async def find(self, path: str) -> bytes | None:
        self.reads += 1
        return await super().find(path)


def record_of(*, clock: ManualClock, message: str = "no", release: str = "1") -> QuarantineRecord:
    failure = CompileFailure(kind=FailureKind.FAILURE_KIND_NOT_SERIALIZABLE, message=message)
    record = QuarantineRecord(key=A, failure=failure, farm_version=release)
    record.since.FromDatetime(clock.now())
    record.until.FromDatetime(clock.now() + timedelta(seconds=HOUR))
    return record


class SmallInListings(WrappingBackend):
    """A backend whose listings say that objects have a byte."""

    async def objects(self, folder: str) -> AsyncIterator[StoredObject]:
        async for stored in super().objects(folder):
            yield replace(stored, size_bytes=1)


@pytest.mark.parametrize("listed", [WrappingBackend, SmallInListings], ids=["said", "not said"])
async def test_records_that_are_larger_than_any_that_a_gateway_writes_are_not_kept(
    clock: ManualClock, listed: type[WrappingBackend]
) -> None:
    """Forty of 20 MB took 800 MB, and 5,000 of them would have been kept."""
    medium = MemoryStore()
    large = record_of(clock=clock, message="x" * 200_000)
    medium.put(remembered_path(A, digest="0" * 64), large.SerializeToString())
    backend = listed(ObjectBackend(medium, location="memory:"))
    quarantine = Quarantine(backend, clock=clock, seconds=HOUR, farm_version="1")
    assert await quarantine.find(A, namespaces=[""], hints=[]) is None
    medium.put(remembered_path(A, digest="1" * 64), record_of(clock=clock).SerializeToString())
    assert await quarantine.find(A, namespaces=[""], hints=[]) is not None


async def test_what_another_release_has_left_is_read_once(clock: ManualClock) -> None:
    medium = MemoryStore()
    medium.put(remembered_path(A, digest="0" * 64), record_of(clock=clock, release="0").SerializeToString())
    backend = Read(ObjectBackend(medium, location="memory:"))
    quarantine = Quarantine(backend, clock=clock, seconds=HOUR, farm_version="1")
    for _ in range(3):
        assert await quarantine.find(A, namespaces=[""], hints=[]) is None
    assert backend.reads == 1


async def test_pods_that_come_in_turn_with_two_sizes_hear_at_once_what_both_waited_for(clock: ManualClock) -> None:
    quarantine, failure = quarantine_in(MemoryStore(), clock=clock), CompileFailure(message="no")
    for hints in ([2], [3]):
        await quarantine.note_refusal(A, namespace="", hints=hints, failure=failure)
    for hints in ([2], [3]):
        assert await quarantine.find(A, namespaces=[""], hints=hints) is not None
    assert await quarantine.find(A, namespaces=[""], hints=[4]) is None
    # As long as each is remembered.
    clock.advance(HOUR / 2)
    await quarantine.note_refusal(A, namespace="", hints=[2], failure=failure)
    clock.advance(HOUR / 2)
    assert await quarantine.find(A, namespaces=[""], hints=[2]) is not None
    assert await quarantine.find(A, namespaces=[""], hints=[3]) is None


async def test_the_sizes_that_are_remembered_of_a_key_are_few(clock: ManualClock) -> None:
    quarantine, failure = quarantine_in(MemoryStore(), clock=clock), CompileFailure(message="no")
    for size in range(20):
        clock.advance(1.0)
        await quarantine.note_refusal(A, namespace="", hints=[size], failure=failure)
    assert [each.hints for each in await quarantine.all()] == [(size,) for size in range(4, 20)]
    # Of a death it is not known what it hangs on.
    await quarantine.note_death(A, namespace="", cause="no memory")
    assert await quarantine.all() == []
