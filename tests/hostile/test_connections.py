"""Connections and calls of one address are bounded, also those that need no token."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path

import grpc.aio
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from compilefarm.core.errors import Busy
from compilefarm.service import connections
from compilefarm.service.call_limits import CallLimits
from compilefarm.service.config import GatewayConfig
from compilefarm.service.connection_watch import LOOK_SECONDS, MOST_WASTED_CALLS, KnownConnections, open_sockets
from compilefarm.service.connections import Connections, _equal_share
from compilefarm.service.server_options import server_options
from compilefarm.service.testing import ManualClock, Refused, calling, refusals, sample_job, serving
from compilefarm.v1.admin_service_pb2 import StatusRequest
from compilefarm.v1.admin_service_pb2_grpc import AdminServiceStub
from tests.hostile.callers import listing
from tests.hostile.frames import ACKNOWLEDGED, PREFACE, SETTINGS

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
    limits = CallLimits(connections=2, calls=3, health_calls=1)
    with limits.counting("ipv4:10.0.0.1:1", is_health=False), limits.counting("ipv4:10.0.0.1:2", is_health=False):
        with (
            pytest.raises(Busy, match=r"10\.0\.0\.1 has 2 connections"),
            limits.counting("ipv4:10.0.0.1:3", is_health=False),
        ):
            pass
        with limits.counting("ipv4:10.0.0.1:2", is_health=False):
            with pytest.raises(Busy, match="has 3 calls"), limits.counting("ipv4:10.0.0.1:2", is_health=False):
                pass
            with limits.counting("ipv4:10.0.0.2:3", is_health=False):
                pass
    with limits.counting("ipv4:10.0.0.1:3", is_health=False):
        pass


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def silent(address: str, *, source: str = "127.0.0.1") -> Connection:
    """A connection that says what HTTP/2 begins with, and makes no calls."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), local_addr=(source, 0))
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
    # The other end speaks, too.
    assert await reader.read(1)
    return reader, writer


async def close(opened: Sequence[Connection], ended: Sequence[asyncio.Task[bytes]]) -> None:
    for _, writer in opened:
        writer.close()
    await asyncio.gather(*ended)


async def test_connections_without_calls_are_bounded(auth_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    look = Connections._look

    def counted(self: Connections, known: KnownConnections) -> None:
        looks.append(known)
        look(self, known)

    monkeypatch.setattr(Connections, "_look", counted)
    clock = ManualClock()
    config = GatewayConfig(listen="127.0.0.1:0", auth_file=auth_file, max_connections_of_address=5)
    async with serving(config=config, clock=clock) as gateway, calling(gateway.address) as calls:
        watch = HealthStub(calls.channel).Watch(HEALTH)
        assert (await anext(aiter(watch))).status == HealthCheckResponse.SERVING
        opened = [await silent(gateway.address) for _ in range(20)]
        ended = [asyncio.create_task(reader.read()) for reader, _ in opened]
        # While nobody looks: a look has files of its own and gives up those that are kept for it.
        before = len(os.listdir("/proc/self/fd"))
        clock.advance(LOOK_SECONDS)
        while sum(task.done() for task in ended) < 16:
            await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED, timeout=5.0)
        # Whoever makes a call is left alone, and to look costs nothing that stays: a file for each look would be more
        # than the ended connections had.
        while len(looks) < 25:
            clock.advance(LOOK_SECONDS)
            await HealthStub(calls.channel).Check(HEALTH)
        async with asyncio.timeout(60):
            while len(os.listdir("/proc/self/fd")) >= before:
                # The last look may be under way.
                await HealthStub(calls.channel).Check(HEALTH)
        assert (await HealthStub(calls.channel).Check(HEALTH)).status == HealthCheckResponse.SERVING
        assert not watch.done()
        assert sum(task.done() for task in ended) == 16
        await close(opened, ended)


async def test_others_are_answered_while_connections_are_looked_at(
    auth_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking, is_answered = threading.Event(), threading.Event()

    def slowly(numbers: Iterable[int] | None = None) -> Iterator[tuple[int, socket.socket]]:
        looking.set()
        assert is_answered.wait(10)
        yield from open_sockets(numbers)

    monkeypatch.setattr(connections, "open_sockets", slowly)
    clock = ManualClock()
    config = GatewayConfig(listen="127.0.0.1:0", auth_file=auth_file, max_connections_of_address=5)
    async with serving(config=config, clock=clock) as gateway, calling(gateway.address, token="one") as calls:
        await calls.status()
        opened = [await silent(gateway.address) for _ in range(20)]
        ended = [asyncio.create_task(reader.read()) for reader, _ in opened]
        clock.advance(LOOK_SECONDS)
        await asyncio.to_thread(looking.wait)
        await calls.status()
        is_answered.set()
        while sum(task.done() for task in ended) < 15:
            await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED, timeout=5.0)
        await close(opened, ended)


@contextmanager
def so_many_files(further: int) -> Iterator[None]:
    """This process may open no more than so many further files."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + further, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_connections_of_several_addresses_are_bounded_together(
    auth_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    monkeypatch.setattr(connections, "_SHARE", 20.5 / resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    config = GatewayConfig(listen="127.0.0.1:0", auth_file=auth_file)
    async with serving(config=config, clock=clock) as gateway, calling(gateway.address, token="one") as calls:
        await calls.status()
        opened = [await silent(gateway.address, source=f"127.0.0.{number % 5 + 2}") for number in range(40)]
        ended = [asyncio.create_task(reader.read()) for reader, _ in opened]
        clock.advance(LOOK_SECONDS)
        while sum(task.done() for task in ended) < 25:
            await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
        # Each address has as many left, and who has few keeps them.
        left = [number % 5 for number, task in enumerate(ended) if not task.done()]
        assert [left.count(number) for number in range(5)] == [3] * 5
        await calls.status()
        await close(opened, ended)


async def test_connections_are_ended_when_no_file_can_be_opened(auth_file: str) -> None:
    clock = ManualClock()
    config = GatewayConfig(listen="127.0.0.1:0", auth_file=auth_file, max_connections_of_address=5)
    async with serving(config=config, clock=clock) as gateway, calling(gateway.address, token="one") as calls:
        # Whoever makes a call keeps its connection.
        watch = HealthStub(calls.channel).Watch(HEALTH)
        assert (await anext(aiter(watch))).status == HealthCheckResponse.SERVING
        opened = [await silent(gateway.address) for _ in range(20)]
        ended = [asyncio.create_task(reader.read()) for reader, _ in opened]
        with so_many_files(10):
            taken = _all_files()
            clock.advance(LOOK_SECONDS)
            while sum(task.done() for task in ended) < 16:
                await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
            for number in taken:
                os.close(number)
        await calls.status()
        watch.cancel()
        await close(opened, ended)


def _all_files() -> list[int]:
    taken = list[int]()
    with suppress(OSError):
        while True:
            taken.append(os.dup(0))
    return taken


@pytest.mark.parametrize(
    ("counts", "expected"),
    [([3, 5], 8), ([30, 3], 7), ([30, 30], 5), ([30, 1, 2], 7), ([9, 9, 9, 9, 9], 2), ([], 8)],
)
def test_whoever_has_few_connections_keeps_them(counts: list[int], expected: int) -> None:
    assert _equal_share(counts, most=8, most_of_all=10) == expected


async def test_a_connection_whose_calls_come_to_nothing_is_ended(tmp_path: Path) -> None:
    (tmp_path / "callers.toml").write_text(listing({"one": "compile"}))
    clock = ManualClock()
    config = GatewayConfig(listen="127.0.0.1:0", auth_file=str(tmp_path / "callers.toml"))
    async with serving(config=config, clock=clock) as gateway, calling(gateway.address, token="one") as calls:
        status = await calls.watch(sample_job())
        await status.finish()
        async with grpc.aio.insecure_channel(gateway.address) as stranger:
            for _ in range(MOST_WASTED_CALLS + 1):
                with pytest.raises(Refused, match="asks who calls"), refusals():
                    await AdminServiceStub(stranger).Status(StatusRequest())
            before = stranger.get_state()
            changed = asyncio.create_task(stranger.wait_for_state_change(before))
            clock.advance(LOOK_SECONDS)
            await changed
        await calls.status()


async def test_a_connection_that_asks_for_what_there_is_not_is_ended(auth_file: str) -> None:
    clock = ManualClock()
    async with (
        serving(config=GatewayConfig(listen="127.0.0.1:0", auth_file=auth_file), clock=clock) as gateway,
        grpc.aio.insecure_channel(gateway.address) as stranger,
    ):
        ask = stranger.unary_unary("/no.such/Method")
        for _ in range(MOST_WASTED_CALLS + 1):
            with pytest.raises(Refused, match="no such method") as refused, refusals():
                await ask(b"")
        assert refused.value.status == "UNIMPLEMENTED"
        changed = asyncio.create_task(stranger.wait_for_state_change(stranger.get_state()))
        clock.advance(LOOK_SECONDS)
        await changed


async def test_connections_that_do_nothing_end_after_the_times_that_are_told_to_grpc() -> None:
    faster = {"grpc.server_handshake_timeout_ms": 100, "grpc.max_connection_idle_ms": 10_000}
    options = [(name, value // faster.get(name, 1)) for name, value in server_options(most_connections=16)]
    server = grpc.aio.server(options=options)
    address = ("127.0.0.1", server.add_insecure_port("127.0.0.1:0"))
    await server.start()
    try:
        # The core's timers end some milliseconds early.
        for said, least_seconds in ((b"", 0.18), (PREFACE + SETTINGS + ACKNOWLEDGED, 0.32)):
            started = time.monotonic()
            reader, writer = await asyncio.open_connection(*address)
            writer.write(said)
            async with asyncio.timeout(30):
                await reader.read()
            writer.close()
            assert time.monotonic() - started >= least_seconds
    finally:
        await server.stop(0)
