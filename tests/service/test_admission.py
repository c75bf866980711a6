"""What requests are found to be is known for a while: a fleet of pods asks for the same jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compilefarm.core import keys
from compilefarm.core.keys import key_of, newest_format
from compilefarm.core.metadata import KEY_FORMATS_KEY
from compilefarm.service import admission
from compilefarm.service.config import GatewayConfig
from compilefarm.service.testing import Calls, Refused, calling, sample_job, serving
from compilefarm.service.validation import validate
from compilefarm.v1.compile_service_pb2 import PlanRequest
from compilefarm.v1.job_pb2 import Job
from tests.hostile.callers import LOOPBACK, listing


@pytest.fixture
def validated(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """The jobs that the gateway went through."""
    jobs: list[Job] = []

    def count(job: Job, **limits: Any) -> int:
        jobs.append(job)
        return validate(job, **limits)

    monkeypatch.setattr(admission, "validate", count)
    return jobs


@pytest.fixture
async def calls() -> AsyncIterator[Calls]:
    async with serving() as gateway, calling(gateway.address) as calls:
        yield calls


@pytest.fixture
def config(tmp_path: Path) -> GatewayConfig:
    """With callers one and two, each of a namespace of its own."""
    (tmp_path / "callers.toml").write_text(listing({"one": "compile", "two": "compile"}))
    return replace(LOOPBACK, auth_file=str(tmp_path / "callers.toml"))


async def test_a_job_is_gone_through_once(calls: Calls, validated: list[Job]) -> None:
    compiled = await calls.finish(sample_job())
    for _ in range(3):
        assert (await calls.lookup(sample_job())) == compiled.manifest
    await calls.plan(sample_job())
    assert len(validated) == 1


async def test_another_job_is_gone_through(calls: Calls, validated: list[Job]) -> None:
    await calls.finish(sample_job())
    with pytest.raises(Refused, match="nothing that fits"):
        await calls.lookup(sample_job("torch.tanh"))
    assert len(validated) == 2


async def test_a_malformed_job_is_refused_each_time(calls: Calls, validated: list[Job]) -> None:
    job = sample_job()
    job.graph.nodes.pop()
    for _ in range(2):
        with pytest.raises(Refused, match="the last node"):
            await calls.lookup(job)
    assert len(validated) == 2


async def test_nobody_learns_from_the_time_what_other_namespaces_ask(
    config: GatewayConfig, validated: list[Job]
) -> None:
    async with serving(config=config) as gateway:
        for caller in ("one", "one", "two", "two"):
            async with calling(gateway.address, token=caller) as calls:
                await calls.plan(sample_job())
    assert len(validated) == 2


async def test_a_key_is_of_the_format_that_a_pod_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    formats = {**keys.FORMATS, newest_format() + 1: keys.PART_NAMES}
    monkeypatch.setattr(keys, "FORMATS", formats)
    async with serving() as gateway, calling(gateway.address) as calls:
        for number in formats:
            known = ((KEY_FORMATS_KEY, str(number)),)
            response = await calls.compiles.Plan(PlanRequest(job=sample_job()), metadata=known)
            assert response.key == key_of(sample_job(), format=number).text


async def test_what_is_known_of_jobs_is_bounded(
    calls: Calls, validated: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "_MOST_KNOWN", 2)
    for name in ("a", "b", "c", "a"):
        with pytest.raises(Refused, match="nothing that fits"):
            await calls.lookup(sample_job(name))
    assert len(validated) == 4
    with pytest.raises(Refused, match="nothing that fits"):
        await calls.lookup(sample_job("c"))
    assert len(validated) == 4
