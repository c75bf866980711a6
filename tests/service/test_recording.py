"""What a farm is asked for, recorded by the farm."""

from __future__ import annotations

from pathlib import Path

import pytest

from compilefarm.core.digests import digest_of
from compilefarm.core.errors import UnusableRecording
from compilefarm.core.recordings import MANIFEST, read_recording
from compilefarm.service.config import GatewayConfig
from compilefarm.service.testing import Refused, calling, sample_job, serving
from compilefarm.v1.compile_service_pb2 import Priority


def config(folder: Path) -> GatewayConfig:
    return GatewayConfig(listen="127.0.0.1:0", record=str(folder))


async def test_compiles_and_lookups_are_recorded_and_plans_and_prewarming_are_not(tmp_path: Path) -> None:
    async with serving(config=config(tmp_path)) as gateway, calling(gateway.address) as calls:
        digest = await calls.write(b"tensor")
        held = sample_job("torch.cos", constants=[digest])
        await calls.finish(held)
        with pytest.raises(Refused, match="NOT_FOUND"):
            await calls.lookup(sample_job("torch.sin"))
        await calls.lookup(held)
        await calls.plan(sample_job("torch.tan"))
        watch = await calls.watch(sample_job("torch.exp"), priority=Priority.PRIORITY_PREWARM)
        await watch.finish()
    recording = read_recording(tmp_path)
    assert [(each.request.job, each.first, each.count) for each in recording.requests] == [
        (held, 0, 2),
        (sample_job("torch.sin"), 1, 1),
    ]
    assert recording.requests[0].request.blobs == {digest_of(b"tensor"): b"tensor"}


async def test_a_lookup_brings_no_tensors(tmp_path: Path) -> None:
    job = sample_job(constants=[digest_of(b"unknown")])
    async with serving(config=config(tmp_path)) as gateway, calling(gateway.address) as calls:
        with pytest.raises(Refused):
            await calls.lookup(job)
    (recorded,) = read_recording(tmp_path).requests
    assert recorded.request.missing_digests() == [digest_of(b"unknown")]


async def test_a_request_that_is_refused_is_not_recorded(tmp_path: Path) -> None:
    job = sample_job()
    job.graph.ClearField("nodes")
    async with serving(config=config(tmp_path)) as gateway, calling(gateway.address) as calls:
        with pytest.raises(Refused, match="INVALID_ARGUMENT"):
            await calls.finish(job)
    assert read_recording(tmp_path).requests == []


async def test_a_recording_that_breaks_fails_no_request_and_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(config=config(tmp_path)) as gateway, calling(gateway.address) as calls:
        (tmp_path / MANIFEST).write_text("{")
        assert (await calls.finish(sample_job())).HasField("manifest")
    assert "missing from the recording" in caplog.text


async def test_a_folder_that_cannot_be_used_is_said_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UnusableRecording, match="cannot be written"):
        async with serving(config=config(tmp_path / "file")):
            pass
