"""Prewarm jobs that are kept on disk: one entry for what is the same, bounded, and read when it is needed."""

from __future__ import annotations

import asyncio
import os
import threading
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import pytest

from compilefarm.core.digests import digest_of
from compilefarm.core.errors import Busy
from compilefarm.core.keys import Key, key_of
from compilefarm.service.journal import Journal, JournalEntry
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
from compilefarm.v1.compile_service_pb2 import CompileRequest, Priority
from compilefarm.v1.environment_pb2 import Environment
from compilefarm.v1.graph_pb2 import Value
from compilefarm.v1.job_pb2 import Job
from tests.hostile.callers import farm

PREWARM = Priority.PRIORITY_PREWARM
KEY = key_of(sample_job())


def files(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if name != ".lock")


def job_for(size: int) -> Job:
    job = sample_job()
    job.hints.append(size)
    return job


async def test_what_is_asked_for_again_and_again_is_kept_once(tmp_path: Path) -> None:
    held, journal = HeldCompiles(), Journal(tmp_path, clock=ManualClock())
    async with serving(pool=ScriptedPool(held), journal=journal) as gateway, calling(gateway.address) as calls:
        watches = [await calls.watch(sample_job(), priority=PREWARM) for _ in range(20)]
        assert len(files(tmp_path)) == 1
        (await held.next()).finish()
        for watch in watches:
            await watch.finish()
        assert files(tmp_path) == []
    journal.close()


async def test_each_namespace_and_hint_has_an_entry_of_its_own(tmp_path: Path) -> None:
    journal = Journal(tmp_path, clock=ManualClock())
    for namespaces in (["prod"], ["dev", "prod"]):
        for size in (2, 3):
            for _ in range(2):
                await journal.keep(KEY, job=job_for(size), tenant="", namespaces=namespaces, account="one")
    assert len(journal.entries()) == len(files(tmp_path)) == 4
    journal.close()


async def test_an_entry_goes_when_the_last_who_shares_it_is_refused(tmp_path: Path) -> None:
    journal = Journal(tmp_path, clock=ManualClock())
    kept = await asyncio.gather(
        *(journal.keep(KEY, job=sample_job(), tenant="", namespaces=[""], account="one") for _ in range(3))
    )
    assert len(files(tmp_path)) == 1
    for entry in kept[:2]:
        journal.remove(entry)
    assert len(files(tmp_path)) == 1
    journal.remove(kept[2])
    assert files(tmp_path) == []
    journal.close()


async def fill(journal: Journal, *, account: str, jobs: int = 20) -> None:
    for number in range(jobs):
        job = sample_job(f"torch.{account}{number}")
        await journal.keep(key_of(job), job=job, tenant="", namespaces=[""], account=account)


@pytest.mark.parametrize("bound", [{"most_entries": 12}, {"most_bytes": 3600}])
async def test_no_more_is_kept_than_may_be(tmp_path: Path, bound: dict[str, int]) -> None:
    for _ in range(2):
        # What is left of the service before counts, too.
        journal = Journal(tmp_path, clock=ManualClock(), **bound)
        for account in ("one", "two", "three", "four"):
            # One cannot keep the others out.
            with pytest.raises(Busy, match=f"prewarm jobs of {account}"):
                await fill(journal, account=account)
        assert 4 <= len(files(tmp_path)) <= 12
        journal.close()


async def test_all_together_keep_no_more_than_may_be(tmp_path: Path) -> None:
    journal = Journal(tmp_path, clock=ManualClock(), most_entries=8)
    for number in range(8):
        await fill(journal, account=f"caller{number}", jobs=1)
    with pytest.raises(Busy, match="8 prewarm jobs of all callers together"):
        await fill(journal, account="last", jobs=1)
    journal.close()


async def test_a_prewarm_of_another_is_taken_when_one_caller_has_its_share(tmp_path: Path) -> None:
    held, journal = HeldCompiles(), Journal(tmp_path / "state", clock=ManualClock(), most_entries=4)
    names = {"greedy": "prewarm", "modest": "prewarm"}
    async with farm(tmp_path, names, pool=ScriptedPool(held), journal=journal) as callers:
        await callers["greedy"].watch(sample_job(), priority=PREWARM)
        with pytest.raises(Refused, match="1 prewarm jobs of greedy"):
            await callers["greedy"].watch(sample_job("torch.sin"), priority=PREWARM)
        await callers["modest"].watch(sample_job("torch.cos"), priority=PREWARM)
    journal.close()


async def test_a_start_does_not_read_what_is_kept(tmp_path: Path) -> None:
    journal = Journal(tmp_path, clock=ManualClock())
    for number in range(10):
        job = sample_job(f"torch.f{number}")
        job.graph.nodes[1].call.args.extend([Value(text="x" * 10**6)])
        await journal.keep(key_of(job), job=job, tenant="", namespaces=[""], account="one")
    journal.close()
    tracemalloc.start()
    journal = Journal(tmp_path, clock=ManualClock())
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(journal.entries()) == 10
    # Ten entries of a megabyte.
    assert most_bytes < 10**5
    accepted = journal.read(journal.entries()[0])
    assert accepted is not None
    assert accepted.key == journal.entries()[0].key
    journal.close()


async def test_what_no_worker_can_do_at_the_start_is_done_when_one_can(tmp_path: Path) -> None:
    clock, other = ManualClock(), Environment(torch="2.11.0+cpu")
    journal = Journal(tmp_path, clock=clock)
    await journal.keep(KEY, job=sample_job(), tenant="", namespaces=[""], account="one")
    pool = ScriptedPool(environments=[other])
    async with serving(pool=pool, journal=journal, clock=clock) as gateway, calling(gateway.address) as calls:
        await clock.wait_for_timer(60.0)
        assert len(files(tmp_path)) == 1
        pool.recover("worker-0", environment=ENVIRONMENT)
        clock.advance(60.0)
        while files(tmp_path):
            await calls.status()
        assert (await calls.lookup(sample_job())).key == KEY.text
    journal.close()


async def test_an_entry_of_an_older_release_is_done(tmp_path: Path) -> None:
    # It named its files in the same way, and had one for each request.
    journal = Journal(tmp_path, clock=ManualClock())
    await journal.keep(KEY, job=sample_job(), tenant="one", namespaces=[""], account="one")
    journal.close()
    (name,) = files(tmp_path)
    content = (tmp_path / name).read_bytes().replace(b"one", b"two")
    (tmp_path / f"{KEY.text}-{digest_of(content)}").write_bytes(content)
    journal, pool = Journal(tmp_path, clock=ManualClock()), ScriptedPool()
    async with serving(pool=pool, journal=journal) as gateway, calling(gateway.address) as calls:
        while files(tmp_path):
            await calls.status()
    assert len(pool.assignments) == 1
    journal.close()


async def test_who_goes_before_a_prewarm_is_accepted_leaves_no_entry(tmp_path: Path) -> None:
    journal, held = SlowJournal(tmp_path / "journal", clock=ManualClock()), HeldCompiles()
    async with farm(tmp_path, {"one": "prewarm"}, pool=ScriptedPool(held), journal=journal) as callers:
        for _ in range(2):
            call = callers["one"].compiles.Compile(CompileRequest(job=sample_job(), priority=PREWARM))
            asked = asyncio.ensure_future(anext(aiter(call)))
            assert await asyncio.to_thread(journal.begun.acquire, timeout=10)
            asked.cancel()
            await journal.left.wait()
            journal.left.clear()
            journal.ending.release()
            async with asyncio.timeout(10):
                while journal.entries():
                    await callers["one"].status()
            assert files(tmp_path / "journal") == []
    assert not held.started
    journal.close()


class SlowJournal(Journal):
    """Writes an entry when it is told to, and tells who does not wait for that."""

    def __init__(self, folder: Path, *, clock: ManualClock) -> None:
        super().__init__(folder, clock=clock)
        self.begun, self.ending = threading.Semaphore(0), threading.Semaphore(0)
        self.left = asyncio.Event()

    async def keep(self, key: Key, *, job: Job, tenant: str, namespaces: Sequence[str], account: str) -> JournalEntry:
        try:
            return await super().keep(key, job=job, tenant=tenant, namespaces=namespaces, account=account)
        except asyncio.CancelledError:
            self.left.set()
            raise

    def _write(self, name: str, content: bytes) -> None:
        self.begun.release()
        assert self.ending.acquire(timeout=10)
        super()._write(name, content)


def job_of_size(size: int) -> Job:
    job = job_for(size)
    job.symbols.add(lower=2)
    return job


async def test_the_end_of_a_job_does_not_read_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # 55 entries of 0.8 MB kept everybody waiting for a second, each time that one of them was done.
    held, journal = HeldCompiles(), Journal(tmp_path, clock=ManualClock())
    monkeypatch.setattr(journal, "read", None)
    async with serving(pool=ScriptedPool(held), journal=journal) as gateway, calling(gateway.address) as calls:
        watches = [await calls.watch(job_of_size(size), priority=PREWARM) for size in (2, 3, 4)]
        other = await calls.watch(sample_job(), priority=PREWARM)
        assert len(files(tmp_path)) == 4
        (await held.next()).finish()
        for watch in watches:
            await watch.finish()
        assert [name[: len(KEY.text)] for name in files(tmp_path)] == [KEY.text]
        (await held.next()).finish()
        await other.finish()
        assert files(tmp_path) == []
    journal.close()


async def test_an_entry_without_namespaces_is_given_up_and_keeps_nobody_from_being_done(tmp_path: Path) -> None:
    journal, pool = Journal(tmp_path, clock=ManualClock()), ScriptedPool()
    for namespaces in ([], ["prod"]):
        await journal.keep(KEY, job=sample_job(), tenant="", namespaces=namespaces, account="one")
    journal.close()
    journal = Journal(tmp_path, clock=ManualClock())
    async with serving(pool=pool, journal=journal) as gateway, calling(gateway.address) as calls:
        while files(tmp_path):
            await calls.status()
        assert len(pool.assignments) == 1
    journal.close()
