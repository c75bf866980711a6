"""Prewarm jobs that are kept on disk: one entry for what is the same, bounded, and read when it is needed."""

from __future__ import annotations

import asyncio
import os
import tracemalloc
from pathlib import Path

import pytest

from compilefarm.core.digests import digest_of
from compilefarm.core.errors import Busy
from compilefarm.core.keys import key_of
from compilefarm.service.journal import Journal
from compilefarm.service.testing import (
    ENVIRONMENT,
    HeldCompiles,
    ManualClock,
    ScriptedPool,
    calling,
    sample_job,
    serving,
)
from compilefarm.v1.compile_service_pb2 import Priority
from compilefarm.v1.environment_pb2 import Environment
from compilefarm.v1.graph_pb2 import Value
from compilefarm.v1.job_pb2 import Job

PREWARM = Priority.PRIORITY_PREWARM
KEY = key_of(sample_job()).text


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
                await journal.keep(KEY, job=job_for(size), tenant="", namespaces=namespaces)
    assert len(journal.entries()) == len(files(tmp_path)) == 4
    journal.close()


async def test_an_entry_goes_when_the_last_who_shares_it_is_refused(tmp_path: Path) -> None:
    journal = Journal(tmp_path, clock=ManualClock())
    kept = await asyncio.gather(*(journal.keep(KEY, job=sample_job(), tenant="", namespaces=[""]) for _ in range(3)))
    assert len(files(tmp_path)) == 1
    for entry in kept[:2]:
        journal.remove(entry)
    assert len(files(tmp_path)) == 1
    journal.remove(kept[2])
    assert files(tmp_path) == []
    journal.close()


async def fill(journal: Journal) -> None:
    for number in range(20):
        job = sample_job(f"torch.f{number}")
        await journal.keep(key_of(job).text, job=job, tenant="", namespaces=[""])


@pytest.mark.parametrize("bound", [{"most_entries": 3}, {"most_bytes": 900}])
async def test_no_more_is_kept_than_may_be(tmp_path: Path, bound: dict[str, int]) -> None:
    for _ in range(2):
        # What is left of the service before counts, too.
        journal = Journal(tmp_path, clock=ManualClock(), **bound)
        with pytest.raises(Busy, match="prewarm jobs"):
            await fill(journal)
        assert 0 < len(files(tmp_path)) <= 3
        journal.close()


async def test_a_start_does_not_read_what_is_kept(tmp_path: Path) -> None:
    journal = Journal(tmp_path, clock=ManualClock())
    for number in range(10):
        job = sample_job(f"torch.f{number}")
        job.graph.nodes[1].call.args.extend([Value(text="x" * 10**6)])
        await journal.keep(key_of(job).text, job=job, tenant="", namespaces=[""])
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
    await journal.keep(KEY, job=sample_job(), tenant="", namespaces=[""])
    pool = ScriptedPool(environments=[other])
    async with serving(pool=pool, journal=journal, clock=clock) as gateway, calling(gateway.address) as calls:
        await clock.wait_for_timer(60.0)
        assert len(files(tmp_path)) == 1
        pool.recover("worker-0", environment=ENVIRONMENT)
        clock.advance(60.0)
        while files(tmp_path):
            await calls.status()
        assert (await calls.lookup(sample_job())).key == KEY
    journal.close()


async def test_an_entry_of_an_older_release_is_done(tmp_path: Path) -> None:
    # It named its files in the same way, and had one for each request.
    journal = Journal(tmp_path, clock=ManualClock())
    await journal.keep(KEY, job=sample_job(), tenant="one", namespaces=[""])
    journal.close()
    (name,) = files(tmp_path)
    content = (tmp_path / name).read_bytes().replace(b"one", b"two")
    (tmp_path / f"{KEY}-{digest_of(content)}").write_bytes(content)
    journal, pool = Journal(tmp_path, clock=ManualClock()), ScriptedPool()
    async with serving(pool=pool, journal=journal) as gateway, calling(gateway.address) as calls:
        while files(tmp_path):
            await calls.status()
    assert len(pool.assignments) == 1
    journal.close()
