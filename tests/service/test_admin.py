"""What an operator sees."""

from __future__ import annotations

import pytest

from compilefarm.service.testing import ENVIRONMENT, Refused, ScriptedPool, calling, sample_job, serving
from compilefarm.v1.admin_service_pb2 import WorkerState


async def test_the_status_tells_workers_counts_and_store() -> None:
    pool = ScriptedPool(environments=[ENVIRONMENT, ENVIRONMENT])
    pool.fail("worker-1", problem="no space left")
    async with serving(pool=pool) as gateway, calling(gateway.address) as calls:
        await calls.finish(sample_job())
        await calls.finish(sample_job())
        with pytest.raises(Refused):
            await calls.lookup(sample_job("torch.sin"))
        status = await calls.status()
    assert [(worker.name, worker.state) for worker in status.workers] == [
        ("worker-0", WorkerState.WORKER_STATE_IDLE),
        ("worker-1", WorkerState.WORKER_STATE_FAILED),
    ]
    assert status.workers[0].environment == ENVIRONMENT
    assert (status.counters.hits, status.counters.misses, status.counters.compiled) == (1, 2, 1)
    assert (status.queued_jobs, status.running_jobs) == (0, 0)
    assert (status.store.location, status.store.artifacts, status.store.blobs) == ("memory:", 1, 2)
    assert status.farm_version
    assert status.started.seconds > 0


async def test_an_artifact_is_inspected_by_its_key_or_the_beginning_of_it() -> None:
    async with serving() as gateway, calling(gateway.address) as calls:
        made = (await calls.finish(sample_job())).manifest
        for text in (made.key, made.key[:6], made.key[:16], made.key[:17], made.key[:30]):
            assert await calls.inspect(text) == made


async def test_a_beginning_that_fits_several_keys_lists_them() -> None:
    other = sample_job()
    other.ambient.grad_enabled = True
    async with serving() as gateway, calling(gateway.address) as calls:
        keys = [(await calls.finish(job)).manifest.key for job in (sample_job(), other)]
        with pytest.raises(Refused, match="several keys begin with") as refused:
            await calls.inspect(keys[0][:16])
    assert (refused.value.status, refused.value.reason) == ("INVALID_ARGUMENT", "invalid_request")
    assert [line.strip() for line in refused.value.message.splitlines()[1:]] == sorted(keys)


async def test_what_is_not_stored_or_no_key_is_said_to_be_so() -> None:
    async with serving() as gateway, calling(gateway.address) as calls:
        for text in ("0" * 16 + "-" + "0" * 64, "012345"):
            with pytest.raises(Refused, match=f"nothing is stored under {text}") as refused:
                await calls.inspect(text)
            assert (refused.value.status, refused.value.reason) == ("NOT_FOUND", "not_stored")
        for text in ("", "01234", "../../etc"):
            with pytest.raises(Refused) as refused:
                await calls.inspect(text)
            assert (refused.value.status, refused.value.reason) == ("INVALID_ARGUMENT", "invalid_request")
