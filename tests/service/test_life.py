"""Starting, draining, stopping."""

from __future__ import annotations

import asyncio
import socket

import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from compilefarm.service.app import Gateway
from compilefarm.service.config import CannotStart, GatewayConfig
from compilefarm.service.health_service import SERVICES
from compilefarm.service.testing import (
    FREE_PORT,
    Calls,
    HeldCompiles,
    ManualClock,
    Refused,
    ScriptedPool,
    calling,
    sample_job,
    serving,
    serving_in_thread,
)
from compilefarm.store.artifact_store import ArtifactStore
from compilefarm.store.opening import open_store
from compilefarm.v1.compile_service_pb2 import Outcome


@pytest.fixture
async def store() -> ArtifactStore:
    return await open_store("memory:")


async def health(calls: Calls, service: str = "") -> int:
    answer = await HealthStub(calls.channel).Check(HealthCheckRequest(service=service))
    status: int = answer.status
    return status


async def test_running_jobs_get_the_grace_time_while_nothing_new_is_taken() -> None:
    held, clock = HeldCompiles(), ManualClock()
    pool = ScriptedPool(held)
    async with serving(pool=pool, clock=clock) as gateway, calling(gateway.address) as calls:
        watch = await calls.watch(sample_job())
        compile_ = await held.next()
        closing = asyncio.create_task(gateway.close(grace_seconds=45))
        await clock.wait_for_timer(45.0)
        for service in ("", *SERVICES):
            assert await health(calls, service) == HealthCheckResponse.NOT_SERVING
        for call in (calls.finish, calls.lookup):
            with pytest.raises(Refused, match="takes no more requests; ask again") as refused:
                await call(sample_job("torch.sin"))
            assert (refused.value.status, refused.value.reason) == ("UNAVAILABLE", "draining")
        status = await calls.status()
        compile_.finish()
        finished = await watch.finish()
        await closing
    assert (status.running_jobs, status.counters.refused) == (1, 2)
    assert finished.outcome == Outcome.OUTCOME_COMPILED
    assert pool.closed


async def test_jobs_that_outlast_the_grace_time_end_with_a_clear_word() -> None:
    held, clock = HeldCompiles(), ManualClock()
    pool = ScriptedPool(held)
    async with serving(pool=pool, clock=clock) as gateway, calling(gateway.address) as calls:
        watches = [await calls.watch(sample_job("torch.relu")), await calls.watch(sample_job("torch.sin"))]
        running = await held.next()
        await calls.wait_until_queued(1)
        closing = asyncio.create_task(gateway.close(grace_seconds=45))
        await clock.wait_for_timer(45.0)
        clock.advance(45)
        for watch in watches:
            with pytest.raises(Refused, match="gave up this job; ask again when it is back") as refused:
                await watch.finish()
            assert (refused.value.status, refused.value.reason) == ("UNAVAILABLE", "draining")
        await closing
    assert running.ended.cancelled()
    assert len(held.started) == 1
    assert pool.closed


async def test_what_was_compiled_before_a_restart_is_found_after_it(store: ArtifactStore) -> None:
    async with serving(store=store) as gateway, calling(gateway.address) as calls:
        made = await calls.finish(sample_job())
    async with serving(store=store) as gateway, calling(gateway.address) as calls:
        found = await calls.finish(sample_job())
    assert found.outcome == Outcome.OUTCOME_HIT
    assert found.manifest == made.manifest


async def test_closing_twice_or_before_the_start_does_nothing(store: ArtifactStore) -> None:
    gateway = Gateway(FREE_PORT, store=store, pool=ScriptedPool())
    await gateway.close(grace_seconds=0)
    await gateway.start()
    await gateway.close(grace_seconds=0)
    await gateway.close(grace_seconds=0)


async def test_a_port_that_another_farm_has_is_refused_by_name(store: ArtifactStore) -> None:
    pool = UnstartedPool()
    async with serving() as running, calling(running.address) as calls:
        second = Gateway(GatewayConfig(listen=running.address), store=store, pool=pool)
        with pytest.raises(CannotStart, match=rf"{running.address} \(address already in use\).*--listen"):
            await second.start()
        assert (await calls.finish(sample_job())).HasField("manifest")
    assert not pool.started, "workers are not started in vain"


async def test_a_port_that_another_program_has_is_refused_by_name(store: ArtifactStore) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(CannotStart, match=rf"{address} \(address already in use\)"):
            await Gateway(GatewayConfig(listen=address), store=store, pool=ScriptedPool()).start()


async def test_an_address_of_another_machine_is_refused_by_name(store: ArtifactStore) -> None:
    config = GatewayConfig(listen="192.0.2.1:0", insecure=True)
    with pytest.raises(CannotStart, match=r"192\.0\.2\.1:0 \(cannot assign requested address\)"):
        await Gateway(config, store=store, pool=ScriptedPool()).start()


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "192.0.2.1:7077", "example.org:7077"])
async def test_strangers_are_not_served_unless_that_is_asked_for(listen: str, store: ArtifactStore) -> None:
    with pytest.raises(CannotStart, match=r"refusing to listen on .*--insecure"):
        Gateway(GatewayConfig(listen=listen), store=store, pool=ScriptedPool())
    Gateway(GatewayConfig(listen=listen, insecure=True), store=store, pool=ScriptedPool())


@pytest.mark.parametrize("listen", ["", "7077", "localhost", "localhost:", ":7077", "localhost:http", "[::]:65536"])
async def test_an_address_that_is_none_is_refused(listen: str, store: ArtifactStore) -> None:
    with pytest.raises(CannotStart, match="write it as HOST:PORT"):
        Gateway(GatewayConfig(listen=listen), store=store, pool=ScriptedPool())


@pytest.mark.parametrize("listen", ["localhost:0", "127.0.0.1:0", "[::1]:0"])
async def test_the_address_is_the_one_that_was_bound(listen: str) -> None:
    async with serving(config=GatewayConfig(listen=listen)) as gateway, calling(gateway.address) as calls:
        assert gateway.address.startswith(listen.removesuffix("0"))
        assert not gateway.address.endswith(":0")
        assert (await calls.status()).farm_version


class UnstartedPool(ScriptedPool):
    """Its workers cannot be started."""

    started = False

    async def start(self) -> None:
        self.started = True
        raise RuntimeError("no worker could be started: torch cannot be imported")


async def test_a_farm_whose_workers_cannot_start_says_so_and_leaves_nothing(store: ArtifactStore) -> None:
    pool = UnstartedPool()
    gateway = Gateway(FREE_PORT, store=store, pool=pool)
    with pytest.raises(RuntimeError, match="torch cannot be imported"):
        await gateway.start()
    assert pool.closed
    async with serving(config=GatewayConfig(listen=gateway.address)):
        pass


def test_a_gateway_runs_in_a_thread_for_clients_that_block() -> None:
    with serving_in_thread() as address, socket.create_connection(address.split(":")):
        pass
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(address.split(":"))


def test_a_gateway_in_a_thread_that_cannot_start_says_so() -> None:
    with pytest.raises(CannotStart), serving_in_thread(config=GatewayConfig(listen="nowhere")):
        pass
