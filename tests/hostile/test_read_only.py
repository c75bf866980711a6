"""A store that may not be written: what it has is served, and what it has not is refused in clear words."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from compilefarm.core.errors import StoreUnavailable
from compilefarm.core.pool import Artifact, Assignment
from compilefarm.service.testing import Refused, ScriptedPool, calling, sample_job, serving
from compilefarm.service.testing.pool import OnPhase, compile_at_once
from compilefarm.store.layout import KEY_LEASES, SESSIONS
from compilefarm.store.object_backend import ObjectBackend
from compilefarm.store.opening import build_store, open_store
from compilefarm.store.testing import FillingStore, sample_artifact, sample_key
from compilefarm.v1.blob_service_pb2 import WriteRequest
from compilefarm.v1.compile_service_pb2 import Outcome, Priority
from tests.hostile.callers import LOOPBACK, farm

READ_ONLY = replace(LOOPBACK, read_only=True)
# As anybody but root, for whom modes of files say nothing.
OPEN_WITHOUT_PRIVILEGES = """
import asyncio, sys
from compilefarm.core.errors import StoreUnavailable
from compilefarm.store.opening import open_store
from compilefarm.worker.namespaces import give_up_privileges
give_up_privileges()
try:
    asyncio.run(open_store(sys.argv[1]))
except StoreUnavailable as error:
    print(error)
"""


@pytest.fixture
async def filled(tmp_path: Path) -> Path:
    """A store that holds the artifact of one job, in the namespace of each kind of farm, and cannot be written."""
    folder = tmp_path / "store"
    for names in ({"one": "compile"}, {"": "admin"}):
        async with farm(tmp_path, names, store=await open_store(str(folder))) as callers:
            await next(iter(callers.values())).finish(sample_job())
    # A gateway that has ended removes what said that it compiled, a moment later.
    for area in (KEY_LEASES, SESSIONS):
        shutil.rmtree(folder / area, ignore_errors=True)
    return folder


def content_of(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file and folder with its size and the time of its last change."""
    found = [Path(place, name) for place, folders, files in os.walk(folder) for name in (*folders, *files)]
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in found}


@pytest.fixture
def locked(filled: Path) -> Iterator[Path]:
    """It, and whoever is not root cannot write there either."""
    places = [filled, *(path for path in filled.rglob("*") if path.is_dir())]
    for place in places:
        place.chmod(0o555)
    yield filled
    for place in places:
        place.chmod(0o755)


@pytest.mark.parametrize("asks", [True, False], ids=["auth", "open"])
async def test_hits_are_served_and_misses_refused(locked: Path, tmp_path: Path, asks: bool) -> None:
    before, pool = content_of(locked), ScriptedPool()
    store = await open_store(str(locked), read_only=True, cache_bytes=10**6)
    names = {"one": "prewarm"} if asks else {"": "admin"}
    async with farm(tmp_path, names, store=store, config=READ_ONLY, pool=pool) as callers:
        calls = next(iter(callers.values()))
        hit = await calls.finish(sample_job())
        assert hit.outcome == Outcome.OUTCOME_HIT
        assert await calls.read(hit.manifest.program.digest)
        assert await calls.lookup(sample_job()) == hit.manifest
        for priority in (Priority.PRIORITY_INTERACTIVE, Priority.PRIORITY_PREWARM):
            with pytest.raises(Refused, match="serves its store read-only: compile locally") as refused:
                await (await calls.watch(sample_job("torch.sin"), priority=priority)).finish()
            assert (refused.value.status, refused.value.reason) == ("FAILED_PRECONDITION", "read_only")
        with pytest.raises(Refused, match="ask for the compile first"):
            await calls.write_pieces([WriteRequest(digest="ab" * 32, chunk=b"x")])
    assert content_of(locked) == before
    assert pool.assignments == []


async def test_nothing_is_written_whoever_asks(locked: Path) -> None:
    store = await open_store(str(locked), read_only=True)
    artifact = sample_artifact(sample_key("another"))
    with pytest.raises(StoreUnavailable, match="served read-only"):
        await store.put_artifact(artifact.manifest, blobs=artifact.blobs)


async def test_a_store_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="cannot be used"):
        await open_store(str(tmp_path / "none"), read_only=True)
    assert not (tmp_path / "none").exists()


async def test_a_writing_farm_is_not_told_that_it_is_none() -> None:
    async with serving() as gateway, calling(gateway.address) as calls:
        assert (await calls.finish(sample_job())).outcome == Outcome.OUTCOME_COMPILED


def test_a_folder_that_may_not_be_written_names_the_option(locked: Path) -> None:
    command = [sys.executable, "-c", OPEN_WITHOUT_PRIVILEGES, str(locked)]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "Permission denied" in told
    assert "it can be read, and `compilefarm serve --read-only` serves what it holds" in told


async def test_a_storage_that_cannot_be_written_names_the_option() -> None:
    disk = FillingStore()
    disk.full = True
    with pytest.raises(StoreUnavailable, match=r"No space left.*`compilefarm serve --read-only` serves what it holds"):
        await build_store(ObjectBackend(disk, location="/full"))


async def test_no_compile_is_wasted_on_a_store_that_stopped_taking_artifacts(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="compilefarm")
    disk = FillingStore()
    fills_up = False

    async def compile_job(assignment: Assignment, worker: str, on_phase: OnPhase) -> Artifact:
        # After the gateway has said in the store that it compiles.
        disk.full = fills_up
        return await compile_at_once(assignment, worker, on_phase)

    pool = ScriptedPool(compile_job)
    store = await build_store(ObjectBackend(disk, location="/full"))
    async with serving(store=store, pool=pool) as gateway, calling(gateway.address) as calls:
        await calls.finish(sample_job("torch.sin"))
        fills_up = True
        with pytest.raises(Refused, match="could not be stored and is lost"):
            await calls.finish(sample_job())
        assert "its artifact is lost; none is made until the store can be written: the store at /full" in caplog.text
        for _ in range(3):
            with pytest.raises(Refused, match=r"nothing is compiled.*--read-only") as refused:
                await calls.finish(sample_job())
            assert refused.value.reason == "store_unavailable"
        assert len(pool.assignments) == 2
        assert (await calls.finish(sample_job("torch.sin"))).outcome == Outcome.OUTCOME_HIT
        disk.full = fills_up = False
        assert (await calls.finish(sample_job())).outcome == Outcome.OUTCOME_COMPILED
        assert "the store takes artifacts again" in caplog.text


async def test_nothing_is_compiled_when_no_lease_can_be_written() -> None:
    disk, pool = FillingStore(), ScriptedPool()
    store = await build_store(ObjectBackend(disk, location="/full"))
    async with serving(store=store, pool=pool) as gateway, calling(gateway.address) as calls:
        disk.full = True
        with pytest.raises(Refused, match=r"nothing is compiled.*--read-only") as refused:
            await calls.finish(sample_job())
        assert refused.value.reason == "store_unavailable"
        disk.full = False
        assert (await calls.finish(sample_job())).outcome == Outcome.OUTCOME_COMPILED
    assert len(pool.assignments) == 1
