"""A large request of one caller does not keep the others waiting."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from compilefarm.core.digests import check_digest, digest_of
from compilefarm.core.errors import InvalidRequest
from compilefarm.core.held_tensors import MAX_BYTES
from compilefarm.core.pool import Artifact
from compilefarm.service.config import GatewayConfig
from compilefarm.service.fair_semaphore import FairSemaphore
from compilefarm.service.heavy_work import HeavyWork
from compilefarm.service.testing import Calls, HeldCompiles, Refused, ScriptedPool, calling, sample_job, serving
from compilefarm.service.testing.pool import verify_at_once
from compilefarm.service.validation import validate
from compilefarm.store.opening import open_store
from compilefarm.v1.blob_service_pb2 import WriteRequest
from compilefarm.v1.compile_service_pb2 import (
    GRAPH_OUTCOME_FALLBACK,
    GraphReport,
    LookupRequest,
    PlanRequest,
    Priority,
    ReportRequest,
)
from compilefarm.v1.graph_pb2 import Sequence, Value
from compilefarm.v1.job_pb2 import Job
from tests.hostile.callers import farm

ROOMY = GatewayConfig(listen="127.0.0.1:0", max_message_bytes=8 * 1024 * 1024)
METHODS = {"Plan": PlanRequest, "Lookup": LookupRequest}


def wide_job(values: int, *, other: int = 0) -> Job:
    """Three nodes, and so many values in one argument; another number, another job."""
    job = sample_job()
    job.graph.nodes[1].call.args.add(list=Sequence(items=[Value(node=0)] * values))
    job.graph.nodes[1].call.args.add(integer=other)
    return job


async def send(calls: Calls, method: str, content: bytes) -> str:
    """The status with which bytes are answered that were serialized before."""
    call = calls.channel.unary_unary(f"/compilefarm.v1.CompileService/{method}")(content)
    return (await call.code()).name


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("asks", [True, False], ids=["auth", "open"])
async def test_others_are_answered_while_a_large_request_is_looked_at(tmp_path: Path, method: str, asks: bool) -> None:
    content = METHODS[method](job=wide_job(480_000)).SerializeToString()
    names = {"one": "compile", "two": "read"} if asks else {"": "admin"}
    async with farm(tmp_path, names, config=ROOMY) as callers:
        large = asyncio.create_task(send(next(iter(callers.values())), method, content))
        answered = 0
        while not large.done():
            await list(callers.values())[-1].status()
            answered += 1
    assert large.result() == ("OK" if method == "Plan" else "NOT_FOUND")
    # One may be under way when the large one comes, and one when it is done.
    assert answered > 5


@pytest.mark.parametrize("asks", [True, False], ids=["auth", "open"])
async def test_others_are_answered_while_many_small_requests_are_looked_at(tmp_path: Path, asks: bool) -> None:
    # What was looked at once is known, so each is another.
    contents = [PlanRequest(job=wide_job(3900, other=number)).SerializeToString() for number in range(64)]
    names = {"one": "compile", "two": "read"} if asks else {"": "admin"}
    async with farm(tmp_path, names) as callers:
        greedy, modest = next(iter(callers.values())), list(callers.values())[-1]
        many = asyncio.gather(*(send(greedy, "Plan", content) for content in contents))
        answered = 0
        while not many.done():
            await modest.status()
            answered += 1
    assert set(many.result()) == {"OK"}
    # It was one or two, each after all that had come before it.
    assert answered > 12


async def test_a_piece_of_many_fields_is_not_gone_through() -> None:
    # It took a third of a second, in which nobody else was answered; each caller may send many at a time.
    content = WriteRequest(offset_bytes=1).SerializeToString() * 250_000
    async with serving(config=ROOMY) as gateway, calling(gateway.address) as calls:
        call = calls.channel.stream_unary("/compilefarm.v1.BlobService/Write")(iter([content]))
        assert await call.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert "at most 8 fields" in await call.details()


async def test_values_are_counted_before_they_are_looked_at() -> None:
    job = wide_job(600_000)
    async with serving(config=ROOMY) as gateway, calling(gateway.address) as calls:
        with pytest.raises(Refused, match="more than the 500000 values"):
            await calls.plan(job)


@pytest.mark.parametrize("asks", [True, False], ids=["auth", "open"])
async def test_others_are_answered_while_tensors_of_graphs_are_looked_for(tmp_path: Path, asks: bool) -> None:
    store = await open_store(str(tmp_path / "store"))
    names = {"one": "compile", "two": "read"} if asks else {"": "admin"}
    async with farm(tmp_path, names, store=store) as callers:
        jobs = [
            sample_job(f"torch.f{number}", constants=[digest_of(f"{number} {each}".encode()) for each in range(1000)])
            for number in range(8)
        ]
        asked = [asyncio.create_task(next(iter(callers.values())).finish(job)) for job in jobs]
        longest_seconds = 0.0
        while not all(task.done() for task in asked):
            started_seconds = time.monotonic()
            await list(callers.values())[-1].status()
            longest_seconds = max(longest_seconds, time.monotonic() - started_seconds)
        refused = await asyncio.gather(*asked, return_exceptions=True)
    assert all(isinstance(error, Refused) and "1000 tensors of the graph" in error.message for error in refused)
    # It was 15 s when everything was looked for at once.
    assert longest_seconds < 1.0


async def test_tensors_of_a_graph_are_counted() -> None:
    async with serving(config=ROOMY) as gateway, calling(gateway.address) as calls:
        with pytest.raises(Refused, match="holds 4097 tensors: at most 4096 are allowed"):
            await calls.plan(sample_job(constants=["ab" * 32] * 4097))


async def test_tensors_that_no_graph_can_hold_are_not_read_into_memory(tmp_path: Path) -> None:
    store, pool = await open_store(str(tmp_path / "store")), ScriptedPool()
    async with serving(store=store, pool=pool) as gateway, calling(gateway.address) as calls:
        large = [await calls.write(bytes([number]) * MAX_BYTES) for number in range(3)]
        assert (await calls.finish(sample_job(constants=large))).HasField("manifest")
        larger = await calls.write(bytes(MAX_BYTES + 1))
        with pytest.raises(Refused, match=f"at most {MAX_BYTES}"):
            await calls.finish(sample_job(constants=[larger]))
    assert len(pool.assignments) == 1


async def test_jobs_that_wait_take_so_much_memory_of_one_caller(tmp_path: Path) -> None:
    held = HeldCompiles()
    config = replace(ROOMY, max_waiting_bytes_of_caller=100_000)
    names = {"greedy": "compile", "modest": "compile"}
    async with farm(tmp_path, names, config=config, pool=ScriptedPool(held)) as callers:
        watch = await callers["greedy"].watch(wide_job(1500))
        for _ in range(2):
            with pytest.raises(Refused, match="greedy has 100000 bytes") as refused:
                await callers["greedy"].watch(wide_job(1501))
            assert refused.value.reason == "busy"
        other = await callers["modest"].watch(sample_job())
        for each in (watch, other):
            (await held.next()).finish()
            await each.finish()
        last = asyncio.create_task(finish_patiently(callers["greedy"], wide_job(1501)))
        (await held.next()).finish()
        await last


async def test_texts_of_jobs_that_wait_count_as_well(tmp_path: Path) -> None:
    held, job = HeldCompiles(), sample_job()
    job.graph.nodes[1].call.args.extend([Value(text="a" * 4000)] * 20)
    config = replace(ROOMY, max_waiting_bytes_of_caller=100_000)
    async with farm(tmp_path, {"greedy": "compile"}, config=config, pool=ScriptedPool(held)) as callers:
        watch = await callers["greedy"].watch(job)
        with pytest.raises(Refused, match="greedy has 100000 bytes"):
            await callers["greedy"].watch(job)
        (await held.next()).finish()
        await watch.finish()


async def finish_patiently(calls: Calls, job: Job) -> None:
    """Asks until there is room: that of a job is free a moment after its answer."""
    while True:
        try:
            await calls.finish(job)
            return
        except Refused as refused:
            if refused.reason != "busy":
                raise


async def test_verifications_that_wait_take_so_much_memory_of_one_caller(tmp_path: Path) -> None:
    ending = asyncio.Event()

    async def verify(artifact: Artifact) -> Artifact:
        await ending.wait()
        return await verify_at_once(artifact)

    config = replace(ROOMY, verify="after", max_waiting_bytes_of_caller=100_000)
    pool = ScriptedPool(verify=verify)
    async with farm(tmp_path, {"greedy": "admin", "modest": "compile"}, config=config, pool=pool) as callers:
        for _ in range(2):
            # What was not verified for the lack of room is when it is asked for again.
            for values in (1500, 1501, 1502):
                await finish_patiently(callers["greedy"], wide_job(values))
            assert len((await callers["greedy"].list_jobs()).checks) == 1
        await callers["modest"].finish(sample_job())
        assert len((await callers["greedy"].list_jobs()).checks) == 2
        ending.set()
        while len(pool.checked) < 4:
            await finish_patiently(callers["greedy"], wide_job(1501))
            await finish_patiently(callers["greedy"], wide_job(1502))


@pytest.mark.parametrize("asks", [True, False], ids=["auth", "open"])
async def test_others_are_answered_while_many_reports_come(tmp_path: Path, asks: bool) -> None:
    names = {"one": "read", "two": "read"} if asks else {"": "admin"}
    graphs = [GraphReport(outcome=GRAPH_OUTCOME_FALLBACK, reason=f"reason{number % 150}") for number in range(1000)]
    content = ReportRequest(graphs=graphs).SerializeToString()
    async with farm(tmp_path, names) as callers:
        greedy, modest = next(iter(callers.values())), list(callers.values())[-1]
        await send(greedy, "Report", content)
        many = asyncio.gather(*(send(greedy, "Report", content) for _ in range(64)))
        answered = 0
        while not many.done():
            await modest.status()
            answered += 1
    assert set(many.result()) == {"OK"}
    # It was one or two, each after all that had come before it.
    assert answered > 12


@pytest.mark.parametrize("depth", [1, 3])
def test_values_within_others_count(depth: int) -> None:
    job = sample_job()
    validate(job, max_nodes=10, max_values=20)
    value = Value(list=Sequence(items=[Value(node=0)] * 10))
    for _ in range(depth):
        value = Value(tuple=Sequence(items=[value, value]))
    job.graph.nodes[1].call.args.append(value)
    with pytest.raises(InvalidRequest, match="more than the 20 values"):
        validate(job, max_nodes=10, max_values=20)


async def test_one_account_does_not_have_every_thread() -> None:
    heavy, order = HeavyWork(), list[str]()

    async def run(account: str) -> None:
        await heavy.run(lambda: order.append(account), size_bytes=10**6, account=account)

    greedy = [asyncio.create_task(run("greedy")) for _ in range(50)]
    await asyncio.sleep(0)
    await run("modest")
    assert order.index("modest") < 5
    await asyncio.gather(*greedy)
    assert len(order) == 51
    heavy.close()


async def test_an_account_that_goes_away_has_no_second_thread() -> None:
    heavy, held, begun = HeavyWork(), threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def hold() -> bool:
        loop.call_soon_threadsafe(begun.set)
        return held.wait(60.0)

    gone = asyncio.create_task(heavy.run(hold, size_bytes=10**6, account="greedy"))
    await begun.wait()
    begun.clear()
    gone.cancel()
    again = asyncio.create_task(heavy.run(hold, size_bytes=10**6, account="greedy"))
    for _ in range(10):
        await asyncio.sleep(0)
    assert await heavy.run(lambda: "answered", size_bytes=10**6, account="modest") == "answered"
    assert not begun.is_set()
    held.set()
    assert await again
    assert gone.cancelled()
    heavy.close()


@pytest.mark.parametrize("priority", [Priority.PRIORITY_UNSPECIFIED, Priority.PRIORITY_PREWARM])
async def test_jobs_count_that_go_on_when_who_began_them_has_gone(tmp_path: Path, priority: Priority.ValueType) -> None:
    held = HeldCompiles()
    config = replace(ROOMY, max_waiting_bytes_of_caller=100_000)
    async with farm(tmp_path, {"greedy": "admin"}, config=config, pool=ScriptedPool(held)) as callers:
        calls = callers["greedy"]
        watch = await calls.watch(wide_job(1500), priority=priority)
        running = await held.next()
        watch.cancel()
        while (await calls.list_jobs()).jobs[0].waiting_requests:
            pass
        with pytest.raises(Refused, match="greedy has 100000 bytes"):
            await calls.finish(wide_job(1501))
        running.finish()
        other = None
        # The memory is given back a moment after the job has its result.
        while other is None:
            with contextlib.suppress(Refused):
                other = await calls.watch(wide_job(1501))
        (await held.next()).finish()
        assert (await other.finish()).HasField("manifest")


async def test_looking_for_many_blobs_keeps_nobody_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, looking, ending = await open_store(str(tmp_path / "store")), list[int](), asyncio.Event()

    async def find_missing(digests: list[str], *, namespace: str) -> list[str]:
        looking.append(len(digests))
        await ending.wait()
        return digests

    monkeypatch.setattr(store, "find_missing", find_missing)
    many, one = [digest_of(b"%d" % number) for number in range(1000)], [digest_of(b"one")]
    async with farm(tmp_path, {"greedy": "read", "modest": "compile"}, store=store) as callers:
        asked = [asyncio.create_task(callers["greedy"].find_missing(many)) for _ in range(20)]
        asked += [asyncio.create_task(callers["modest"].find_missing(one))]
        while 1 not in looking:
            await callers["modest"].status()
        # By then all have come that are let in.
        for _ in range(200):
            await callers["modest"].status()
        # A hundred at a time kept everybody else waiting for 26 s.
        assert looking.count(1000) <= 1
        ending.set()
        assert await asyncio.gather(*asked) == [many] * 20 + [one]


async def test_names_of_tensors_are_looked_at_when_it_is_the_turn_of_their_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A thousand take 2 ms, in which nobody else has a turn: thousands of calls kept others waiting for a minute.
    names = [digest_of(b"%d" % number) for number in range(100)]
    asked: list[str] = []
    looked_at: list[str] = []
    free = asyncio.Event()

    class Watched(FairSemaphore):
        def acquired(self, account: str) -> contextlib.AbstractAsyncContextManager[None]:
            asked.append(account)
            return super().acquired(account)

    def check(digest: str) -> str:
        looked_at.append(digest)
        return check_digest(digest)

    async def find(digests: list[str], *, namespace: str) -> list[str]:
        del namespace
        await free.wait()
        return digests

    store = await open_store("memory:")
    monkeypatch.setattr(store, "find_missing", find)
    monkeypatch.setattr("compilefarm.service.blob_service.FairSemaphore", Watched)
    monkeypatch.setattr("compilefarm.service.blob_service.check_digest", check)
    async with farm(tmp_path, {"one": "read", "two": "read"}, store=store) as callers:
        waiting = [asyncio.create_task(callers["one"].find_missing(names)) for _ in range(20)]
        while len(asked) < len(waiting):
            await callers["two"].status()
        assert looked_at == names
        free.set()
        assert await asyncio.gather(*waiting) == [names] * len(waiting)
