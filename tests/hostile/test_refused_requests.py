"""Requests that are refused do not stay in memory."""

from __future__ import annotations

import gc
import weakref
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from compilefarm.core.errors import InvalidRequest
from compilefarm.service import admission
from compilefarm.service.active_job import ActiveJob
from compilefarm.service.requests import AdmittedRequest
from compilefarm.service.testing import Calls, Refused, calling, sample_job, serving
from compilefarm.v1.environment_pb2 import Environment
from compilefarm.v1.job_pb2 import Job


class Held:
    """Stands for the memory that a request takes: a job itself cannot be watched."""


@pytest.fixture
async def calls() -> AsyncIterator[Calls]:
    async with serving() as gateway, calling(gateway.address) as calls:
        yield calls


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Python does not look for circles."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("method", ["plan", "lookup", "finish"])
async def test_nothing_holds_a_request_that_was_refused(
    calls: Calls, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[weakref.ref[Held]] = []

    def refuse(job: Job, **_: Any) -> None:
        # What the frames of the request know while it is refused.
        memory = Held()
        held.append(weakref.ref(memory))
        raise InvalidRequest(f"refused with {len(job.graph.nodes)} nodes and {memory is None}")

    monkeypatch.setattr(admission, "validate", refuse)
    for _ in range(5):
        with pytest.raises(Refused, match="refused with 3 nodes"):
            await getattr(calls, method)(sample_job())
    await calls.status()
    assert len(held) == 5
    # The last may be with the task that answered it.
    assert [reference() for reference in held[:-1]] == [None] * 4


@pytest.mark.usefixtures("no_collection")
async def test_nothing_holds_a_compile_that_no_worker_can_do(calls: Calls) -> None:
    job = sample_job(environment=Environment(torch="9.9"))
    for _ in range(5):
        with pytest.raises(Refused, match="no worker can compile"):
            await calls.finish(job)
    await calls.status()
    for kind in (AdmittedRequest, ActiveJob):
        assert sum(type(each) is kind for each in gc.get_objects()) <= 1
