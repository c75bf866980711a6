"""Prewarm jobs that are kept in the store: one entry for what is the same, bounded, and read when it is needed."""

from __future__ import annotations

import asyncio
import os
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from compilefarm.core.digests import digest_of
from compilefarm.core.errors import Busy
from compilefarm.core.keys import Key, key_of
from compilefarm.service import composition
from compilefarm.service.journal import Journal
from compilefarm.service.journal_entries import JournalEntry
from compilefarm.service.sessions import Peers, Session
from compilefarm.service.testing import (
    ENVIRONMENT,
    HeldCompiles,
    ManualClock,
    Refused,
    ScriptedPool,
    calling,
    sample_job,
    serving,
)
from compilefarm.store.backend import Backend, WrappingBackend
from compilefarm.store.layout import JOURNAL
from compilefarm.store.opening import build_store, open_backend, open_store
from compilefarm.v1.compile_service_pb2 import CompileRequest, Priority
from compilefarm.v1.environment_pb2 import Environment
from compilefarm.v1.graph_pb2 import Value
from compilefarm.v1.job_pb2 import Job
from compilefarm.v1.journal_pb2 import AcceptedJob
from tests.hostile.callers import farm

PREWARM = Priority.PRIORITY_PREWARM
KEY = key_of(sample_job())


def files(folder: Path) -> list[str]:
    """The entries in a store, of whichever gateway."""
    # Twice: one that is just being taken over may be missed in both places.
    walks = [os.walk(folder / JOURNAL) for _ in range(2)]
    return sorted({name for walk in walks for _, _, names in walk for name in names})


async def empty(folder: Path) -> None:
    """Waits until what is done is gone."""
    async with asyncio.timeout(30):
        while await asyncio.to_thread(files, folder):
            pass


@asynccontextmanager
async def journal_in(folder: Path, *, clock: ManualClock | None = None, **bounds: int) -> AsyncIterator[Journal]:
    """The journal of a gateway without all else of it. What is left in it in the end is left to others."""
    backend, clock = await open_backend(str(folder)), clock or ManualClock()
    session, peers = Session(backend, clock=clock), Peers(backend, clock=clock)
    journal = Journal(backend, session=session, peers=peers, clock=clock, **bounds)
    yield journal
    await journal.close()
    await session.end()


def job_for(size: int) -> Job:
    job = sample_job()
    job.hints.append(size)
    return job


async def test_what_is_asked_for_again_and_again_is_kept_once(tmp_path: Path) -> None:
    held, store = HeldCompiles(), await open_store(str(tmp_path))
    async with serving(pool=ScriptedPool(held), store=store) as gateway, calling(gateway.address) as calls:
        watches = [await calls.watch(sample_job(), priority=PREWARM) for _ in range(20)]
        assert len(files(tmp_path)) == 1
        (await held.next()).finish()
        for watch in watches:
            await watch.finish()
        await empty(tmp_path)


async def test_each_namespace_and_hint_has_an_entry_of_its_own(tmp_path: Path) -> None:
    async with journal_in(tmp_path) as journal:
        for namespaces in (["prod"], ["dev", "prod"]):
            for size in (2, 3):
                for _ in range(2):
                    await journal.keep(KEY, job=job_for(size), tenant="", namespaces=namespaces, account="one")
        assert len(journal.entries()) == len(files(tmp_path)) == 4


async def test_an_entry_goes_when_the_last_who_shares_it_is_refused(tmp_path: Path) -> None:
    async with journal_in(tmp_path) as journal:
        kept = await asyncio.gather(
            *(journal.keep(KEY, job=sample_job(), tenant="", namespaces=[""], account="one") for _ in range(3))
        )
        assert len(files(tmp_path)) == 1
        for entry in kept[:2]:
            journal.remove(entry)
        assert (len(journal.entries()), len(files(tmp_path))) == (1, 1)
        journal.remove(kept[2])
        assert journal.entries() == []
        await empty(tmp_path)


async def fill(journal: Journal, *, account: str, jobs: int = 20) -> None:
    for number in range(jobs):
        job = sample_job(f"torch.{account}{number}")
        await journal.keep(key_of(job), job=job, tenant="", namespaces=[""], account=account)


@pytest.mark.parametrize("bound", [{"most_entries": 12}, {"most_bytes": 3600}])
async def test_no_more_is_kept_than_may_be(tmp_path: Path, bound: dict[str, int]) -> None:
    for _ in range(2):
        async with journal_in(tmp_path, **bound) as journal:
            # What is left of the gateway before counts, too.
            await journal.take_over()
            for account in ("one", "two", "three", "four"):
                # One cannot keep the others out.
                with pytest.raises(Busy, match=f"prewarm jobs of {account}"):
                    await fill(journal, account=account)
            assert 4 <= len(files(tmp_path)) <= 12


async def test_all_together_keep_no_more_than_may_be(tmp_path: Path) -> None:
    async with journal_in(tmp_path, most_entries=8) as journal:
        for number in range(8):
            await fill(journal, account=f"caller{number}", jobs=1)
        with pytest.raises(Busy, match="8 prewarm jobs of all callers together"):
            await fill(journal, account="last", jobs=1)


async def test_no_more_is_taken_over_than_may_be_kept(tmp_path: Path) -> None:
    async with journal_in(tmp_path) as journal:
        await fill(journal, account="one", jobs=5)
    async with journal_in(tmp_path, most_entries=3) as journal:
        assert len(await journal.take_over()) == 3
        assert await journal.take_over() == []
    assert len(files(tmp_path)) == 5


async def test_nothing_is_taken_over_where_more_was_inherited_than_may_be_kept(tmp_path: Path) -> None:
    async with journal_in(tmp_path) as journal:
        await fill(journal, account="one", jobs=5)
    async with journal_in(tmp_path, most_entries=1) as journal:
        for number in range(3):
            await journal.inherit(f"{KEY.text}-{number}", b"of a release before this one")
        assert await journal.take_over() == []


async def test_a_prewarm_of_another_is_taken_when_one_caller_has_its_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(composition, "Journal", partial(Journal, most_entries=4))
    names = {"greedy": "prewarm", "modest": "prewarm"}
    async with farm(tmp_path, names, pool=ScriptedPool(HeldCompiles())) as callers:
        await callers["greedy"].watch(sample_job(), priority=PREWARM)
        with pytest.raises(Refused, match="1 prewarm jobs of greedy"):
            await callers["greedy"].watch(sample_job("torch.sin"), priority=PREWARM)
        await callers["modest"].watch(sample_job("torch.cos"), priority=PREWARM)


async def test_to_take_over_is_not_to_read(tmp_path: Path) -> None:
    async with journal_in(tmp_path) as journal:
        for number in range(10):
            job = sample_job(f"torch.f{number}")
            job.graph.nodes[1].call.args.extend([Value(text="x" * 10**6)])
            await journal.keep(key_of(job), job=job, tenant="", namespaces=[""], account="one")
    async with journal_in(tmp_path) as journal:
        tracemalloc.start()
        entries = await journal.take_over()
        _, most_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert len(entries) == 10
        # Ten entries of a megabyte.
        assert most_bytes < 3 * 10**5
        accepted = await journal.read(entries[0])
        assert accepted is not None
        assert accepted.key == entries[0].key


async def test_what_no_worker_can_do_at_the_start_is_done_when_one_can(tmp_path: Path) -> None:
    clock, other = ManualClock(), Environment(torch="2.11.0+cpu")
    async with journal_in(tmp_path) as journal:
        await journal.keep(KEY, job=sample_job(), tenant="", namespaces=[""], account="one")
    pool, store = ScriptedPool(environments=[other]), await open_store(str(tmp_path))
    async with serving(pool=pool, store=store, clock=clock) as gateway, calling(gateway.address) as calls:
        await clock.wait_for_timer(60.0)
        assert len(files(tmp_path)) == 1
        pool.recover("worker-0", environment=ENVIRONMENT)
        clock.advance(60.0)
        await empty(tmp_path)
        assert (await calls.lookup(sample_job())).key == KEY.text


async def test_an_entry_of_an_older_release_is_done(tmp_path: Path) -> None:
    # It kept them in a folder, had one for each request, and did not name the account.
    accepted = AcceptedJob(key=KEY.text, job=sample_job(), tenant="two", namespaces=[""], key_format=KEY.format)
    accepted.accepted.GetCurrentTime()
    content = accepted.SerializeToString()
    state, pool = tmp_path / "state", ScriptedPool()
    state.mkdir()
    (state / f"{KEY.text}-{digest_of(content)}").write_bytes(content)
    (state / f"{KEY.text}-{digest_of(content)}.staging").write_bytes(content[:9])
    async with serving(pool=pool, former_journal=state) as gateway, calling(gateway.address) as calls:
        while not (await calls.status()).counters.compiled:
            pass
        assert (await calls.lookup(sample_job())).key == KEY.text
    assert len(pool.assignments) == 1
    assert [path.suffix for path in state.iterdir()] == [".staging"], "what was never accepted"


async def test_who_goes_before_a_prewarm_is_accepted_leaves_no_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, held, journals = asyncio.Event(), HeldCompiles(), set[Journal]()
    keep = Journal.keep

    async def noting(journal: Journal, key: Key, **what: Any) -> JournalEntry:
        journals.add(journal)
        try:
            return await keep(journal, key, **what)
        except asyncio.CancelledError:
            left.set()
            raise

    monkeypatch.setattr(Journal, "keep", noting)
    backend = SlowJournals(await open_backend(str(tmp_path / "store")))
    store = await build_store(backend)
    async with farm(tmp_path, {"one": "prewarm"}, pool=ScriptedPool(held), store=store) as callers:
        for _ in range(2):
            call = callers["one"].compiles.Compile(CompileRequest(job=sample_job(), priority=PREWARM))
            asked = asyncio.ensure_future(anext(aiter(call)))
            async with asyncio.timeout(10):
                await backend.begun.acquire()
                asked.cancel()
                await left.wait()
                left.clear()
                backend.ending.release()
                while any(journal.entries() for journal in journals):
                    await callers["one"].status()
                await empty(tmp_path / "store")
    assert not held.started


class SlowJournals(WrappingBackend):
    """Writes an entry of a journal when it is told to."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.begun, self.ending = asyncio.Semaphore(0), asyncio.Semaphore(0)

    async def create(self, path: str, *, content: bytes) -> bool:
        if path.startswith(JOURNAL):
            self.begun.release()
            await self.ending.acquire()
        return await super().create(path, content=content)


def job_of_size(size: int) -> Job:
    job = job_for(size)
    job.symbols.add(lower=2)
    return job


async def test_the_end_of_a_job_does_not_read_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # 55 entries of 0.8 MB kept everybody waiting for a second, each time that one of them was done.
    held, store = HeldCompiles(), await open_store(str(tmp_path))
    monkeypatch.setattr(Journal, "read", None)
    async with serving(pool=ScriptedPool(held), store=store) as gateway, calling(gateway.address) as calls:
        watches = [await calls.watch(job_of_size(size), priority=PREWARM) for size in (2, 3, 4)]
        other = await calls.watch(sample_job(), priority=PREWARM)
        assert len(files(tmp_path)) == 4
        (await held.next()).finish()
        for watch in watches:
            await watch.finish()
        while len(files(tmp_path)) > 1:
            await calls.status()
        assert [name[: len(KEY.text)] for name in files(tmp_path)] == [KEY.text]
        (await held.next()).finish()
        await other.finish()
        await empty(tmp_path)


async def test_what_is_done_for_those_who_are_trusted_less_settles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, store, forgotten = HeldCompiles(), await open_store(str(tmp_path / "store")), list[str]()
    forget = Journal.forget

    def noting(journal: Journal, entry: JournalEntry) -> None:
        forgotten.append(entry.key)
        forget(journal, entry)

    monkeypatch.setattr(Journal, "forget", noting)
    roles = {"one": "prewarm", "two": "compile"}
    async with farm(tmp_path, roles, pool=ScriptedPool(held), store=store) as callers:
        theirs = await callers["two"].watch(sample_job())
        kept = await callers["one"].watch(sample_job(), priority=PREWARM)
        (await held.next()).finish()
        await theirs.finish()
        # Were it settled, a gateway that is killed now would owe nobody this artifact.
        assert not forgotten
        (await held.next()).finish()
        await kept.finish()
        assert forgotten == [KEY.text]


async def test_an_entry_without_namespaces_is_given_up_and_keeps_nobody_from_being_done(tmp_path: Path) -> None:
    async with journal_in(tmp_path) as journal:
        for namespaces in ([], ["prod"]):
            await journal.keep(KEY, job=sample_job(), tenant="", namespaces=namespaces, account="one")
    pool, store = ScriptedPool(), await open_store(str(tmp_path))
    async with serving(pool=pool, store=store, clock=ManualClock()):
        await empty(tmp_path)
    assert len(pool.assignments) == 1


def beyond_the_calendar(accepted: AcceptedJob) -> str:
    accepted.accepted.seconds = 2**62
    return accepted.key


def long_before_it_was_accepted(accepted: AcceptedJob) -> str:
    accepted.accepted.FromDatetime(ManualClock().now() + timedelta(days=8))
    return accepted.key


def under_the_key_of_another(accepted: AcceptedJob) -> str:
    return f"{'0' * 16}{accepted.key[16:]}"


@pytest.mark.parametrize("damage", [beyond_the_calendar, long_before_it_was_accepted, under_the_key_of_another])
async def test_an_entry_that_no_gateway_wrote_keeps_none_from_being_done(
    tmp_path: Path, damage: Callable[[AcceptedJob], str]
) -> None:
    async with journal_in(tmp_path) as journal:
        for namespace in ("prod", "dev"):
            await journal.keep(KEY, job=sample_job(), tenant="", namespaces=[namespace], account="one")
    first = next((tmp_path / JOURNAL).glob("*/*"))
    accepted = AcceptedJob.FromString(first.read_bytes())
    key = damage(accepted)
    content = accepted.SerializeToString(deterministic=True)
    first.unlink()
    first.with_name(f"{key}-{'0' * 16}-{digest_of(content)}").write_bytes(content)
    pool, store = ScriptedPool(), await open_store(str(tmp_path))
    async with serving(pool=pool, store=store, clock=ManualClock()):
        # One ended what looks after all others; another was done for ever.
        await empty(tmp_path)
    assert len(pool.assignments) == 1
