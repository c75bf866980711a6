"""Connections and calls of one address are bounded, also those that need no token."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import grpc.aio
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from compilefarm.core.errors import Busy
from compilefarm.service.config import GatewayConfig
from compilefarm.service.testing import Refused, calling, refusals, serving
from compilefarm.service.visitors import Visitors
from tests.hostile.callers import listing

HEALTH = HealthCheckRequest()


@pytest.fixture(params=[True, False], ids=["auth", "open"])
def auth_file(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if not request.param:
        return ""
    (tmp_path / "callers.toml").write_text(listing({"one": "compile"}))
    return str(tmp_path / "callers.toml")


async def test_connections_of_one_address_are_bounded(auth_file: str) -> None:
    config = GatewayConfig(listen="127.0.0.1:0", auth_file=auth_file, max_connections_of_address=3)
    async with serving(config=config) as gateway, AsyncExitStack() as stack:
        several = [
            # Channels that have equal options share a connection.
            await stack.enter_async_context(grpc.aio.insecure_channel(gateway.address, options=[("number", number)]))
            for number in range(4)
        ]
        # They are kept: a call that nobody holds is cancelled.
        watches = []
        for channel in several[:3]:
            watches.append(HealthStub(channel).Watch(HEALTH))
            assert (await anext(aiter(watches[-1]))).status == HealthCheckResponse.SERVING
        with pytest.raises(Refused, match="has 3 connections") as refused, refusals():
            await HealthStub(several[3]).Check(HEALTH)
        assert refused.value.reason == "busy"


async def test_streams_that_watch_health_are_bounded(auth_file: str) -> None:
    config = GatewayConfig(listen="127.0.0.1:0", auth_file=auth_file, max_health_calls_of_address=3)
    async with serving(config=config) as gateway, calling(gateway.address, token="one") as calls:
        stub = HealthStub(calls.channel)
        watches = [stub.Watch(HEALTH) for _ in range(3)]
        for watch in watches:
            assert (await anext(aiter(watch))).status == HealthCheckResponse.SERVING
        with pytest.raises(Refused, match="calls for health") as refused, refusals():
            await stub.Check(HEALTH)
        assert refused.value.reason == "busy"
        # What has a token is not kept out by it.
        await calls.status()
        watches[0].cancel()
        while True:
            try:
                with refusals():
                    assert (await stub.Check(HEALTH)).status == HealthCheckResponse.SERVING
                break
            except Refused:
                await calls.status()


def test_an_address_has_so_many_connections() -> None:
    visitors = Visitors(connections=2, calls=3, health_calls=1)
    with visitors.visiting("ipv4:10.0.0.1:1", is_health=False), visitors.visiting("ipv4:10.0.0.1:2", is_health=False):
        with (
            pytest.raises(Busy, match=r"10\.0\.0\.1 has 2 connections"),
            visitors.visiting("ipv4:10.0.0.1:3", is_health=False),
        ):
            pass
        with visitors.visiting("ipv4:10.0.0.1:2", is_health=False):
            with pytest.raises(Busy, match="has 3 calls"), visitors.visiting("ipv4:10.0.0.1:2", is_health=False):
                pass
            with visitors.visiting("ipv4:10.0.0.2:3", is_health=False):
                pass
    with visitors.visiting("ipv4:10.0.0.1:3", is_health=False):
        pass
