"""A farm that records what it is asked for: no request waits for that or fails of it, and no caller takes all of the
recording, or makes it one that nobody can read."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from compilefarm.core.digests import digest_of
from compilefarm.core.held_tensors import MAX_BYTES
from compilefarm.core.recordings import MANIFEST, read_recording
from compilefarm.service import background_recorder
from compilefarm.service.config import GatewayConfig
from compilefarm.service.testing import Calls, Refused, sample_job
from compilefarm.store.opening import open_store
from tests.hostile.callers import farm

READERS = {"one": "read", "other": "read"}


def recording(folder: Path) -> GatewayConfig:
    return GatewayConfig(listen="127.0.0.1:0", record=str(folder / "recording"))


async def look_up(calls: Calls, target: str, *constants: str) -> str:
    """Asks for what is not stored; returns how the farm refuses."""
    with pytest.raises(Refused) as refused:
        await calls.lookup(sample_job(target, constants=constants))
    return refused.value.status


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Inside, another process writes into a recording."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(lock)


@pytest.mark.parametrize("limit", ["MOST_WORDS_BYTES", "MOST_CONTENT_BYTES"])
async def test_no_reader_takes_all_room_of_a_recording(
    limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(background_recorder, limit, 32_000)
    async with farm(tmp_path, READERS, config=recording(tmp_path)) as callers:
        for number in range(100):
            await look_up(callers["one"], f"torch.unknown_{number}")
        await look_up(callers["other"], "torch.cos")
        await look_up(callers["one"], "torch.unknown_0")
    recorded = read_recording(tmp_path / "recording").requests
    targets = {each.request.job.graph.nodes[1].call.target: each.count for each in recorded}
    assert targets.pop("torch.cos") == 1
    # What is recorded already is counted all the same.
    assert targets["torch.unknown_0"] == 2
    assert 0 < len(targets) < 75
    assert caplog.text.count("missing from the recording") == 1


async def test_no_request_waits_for_the_recording(tmp_path: Path) -> None:
    async with farm(tmp_path, {"": "compile"}, config=recording(tmp_path)) as callers:
        with held(tmp_path / "recording"):
            async with asyncio.timeout(10):
                for number in range(20):
                    await look_up(callers[""], f"torch.unknown_{number}")
                assert (await callers[""].finish(sample_job("torch.sin"))).HasField("manifest")
    assert len(read_recording(tmp_path / "recording").requests) == 21


async def test_a_tensor_that_is_too_large_fails_no_lookup(tmp_path: Path) -> None:
    store, content = await open_store("memory:"), bytes(MAX_BYTES + 1)
    await store.put_blob(content, digest=digest_of(content))
    async with farm(tmp_path, {"": "compile"}, store=store, config=recording(tmp_path)) as callers:
        assert await look_up(callers[""], "torch.cos", digest_of(content)) == "NOT_FOUND"
    (recorded,) = read_recording(tmp_path / "recording").requests
    assert recorded.request.missing_digests() == [digest_of(content)]


async def test_what_a_recording_has_counts_when_a_farm_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with farm(tmp_path, {"": "compile"}, config=recording(tmp_path)) as callers:
        await look_up(callers[""], "torch.cos")
    monkeypatch.setattr(background_recorder, "MOST_WORDS_BYTES", (tmp_path / "recording" / MANIFEST).stat().st_size)
    async with farm(tmp_path, {"": "compile"}, config=recording(tmp_path)) as callers:
        await look_up(callers[""], "torch.sin")
    assert len(read_recording(tmp_path / "recording").requests) == 1
