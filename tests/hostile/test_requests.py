"""Requests of which nothing comes, or half: nobody holds memory or places with them, and strangers not even begin."""

from __future__ import annotations

import asyncio
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import grpc.aio
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_health.v1.health_pb2_grpc import HealthStub

from compilefarm.service.call_limits import RECEIVED_AT_ONCE_OF_ACCOUNT, CallLimits
from compilefarm.service.callers import Caller, enter
from compilefarm.service.clock import pause
from compilefarm.service.fair_semaphore import FairSemaphore
from compilefarm.service.heavy_work import HeavyWork
from compilefarm.service.interceptor import _receive_one
from compilefarm.service.pace import IDLE_SECONDS
from compilefarm.service.testing import Calls, ManualClock, Refused, calling, refusals, serving
from tests.hostile.callers import LOOPBACK, farm, listing

METHODS = ["CompileService/Plan", "CompileService/Compile", "CompileService/Lookup", "BlobService/Read"]


async def begin(calls: Calls, method: str = "AdminService/Status") -> Any:
    """A call of which the request does not come. On the wire one request is a stream of one."""
    call = calls.channel.stream_stream(f"/compilefarm.v1.{method}")()
    await call.wait_for_connection()
    return call


@pytest.mark.parametrize("method", METHODS)
async def test_a_stranger_is_refused_before_the_request_has_come(tmp_path: Path, method: str) -> None:
    (tmp_path / "callers.toml").write_text(listing({"one": "compile"}))
    config = replace(LOOPBACK, auth_file=str(tmp_path / "callers.toml"))
    async with serving(config=config) as gateway, calling(gateway.address) as stranger:
        with pytest.raises(Refused) as refused, refusals():
            await anext(aiter(await begin(stranger, method)))
        assert refused.value.status == "UNAUTHENTICATED"


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("asks", [True, False], ids=["auth", "open"])
async def test_a_request_that_does_not_come_ends(tmp_path: Path, method: str, asks: bool) -> None:
    clock = ManualClock()
    names = {"one": "compile"} if asks else {"": "admin"}
    async with farm(tmp_path, names, clock=clock) as callers:
        call = await begin(next(iter(callers.values())), method)
        await clock.wait_for_timer(IDLE_SECONDS)
        clock.advance(IDLE_SECONDS)
        with pytest.raises(Refused, match="try again over a better line") as refused, refusals():
            await anext(aiter(call))
        assert refused.value.reason == "too_slow"


async def test_a_call_without_a_request_is_refused() -> None:
    async with serving() as gateway, calling(gateway.address) as calls:
        call = await begin(calls)
        await call.done_writing()
        with pytest.raises(Refused, match="nothing was sent"), refusals():
            await anext(aiter(call))


async def test_requests_on_their_way_are_bounded_for_each_caller(tmp_path: Path) -> None:
    clock = ManualClock()
    async with farm(tmp_path, {"greedy": "compile", "modest": "compile"}, clock=clock) as callers:
        held = [await begin(callers["greedy"]) for _ in range(RECEIVED_AT_ONCE_OF_ACCOUNT)]
        await clock.wait_for_timer(IDLE_SECONDS, count=len(held))
        waiting = asyncio.create_task(callers["greedy"].status())
        await callers["modest"].status()
        assert not waiting.done()
        clock.advance(IDLE_SECONDS)
        await waiting


async def test_strangers_who_ask_for_health_take_no_places_from_callers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As many as strangers from several addresses can take.
    monkeypatch.setattr("compilefarm.service.call_limits.RECEIVED_AT_ONCE", 2)
    (tmp_path / "callers.toml").write_text(listing({"one": "compile"}))
    config = replace(LOOPBACK, auth_file=str(tmp_path / "callers.toml"))
    clock = ManualClock()
    async with (
        serving(config=config, clock=clock) as gateway,
        calling(gateway.address) as stranger,
        calling(gateway.address, token="one") as calls,
    ):
        held = [stranger.channel.stream_stream("/grpc.health.v1.Health/Watch")() for _ in range(3)]
        await clock.wait_for_timer(IDLE_SECONDS, count=2)
        await asyncio.wait_for(calls.status(), 10)
        assert not any(each.done() for each in held)


async def test_what_asks_for_health_is_short() -> None:
    async with serving() as gateway, calling(gateway.address) as calls:
        watch = HealthStub(calls.channel).Watch(HealthCheckRequest(service="x" * 4_000_000))
        with pytest.raises(Refused, match="65536 bytes") as refused, refusals():
            await anext(aiter(watch))
        assert refused.value.reason == "busy"


class Content:
    """Stands for the bytes of a request, which cannot be watched."""

    def __len__(self) -> int:
        return 9


async def test_the_bytes_of_a_request_go_once_it_is_parsed() -> None:
    enter(Caller(account="one"))
    contents = [Content()]
    watched = weakref.ref(contents[0])
    context = mock.Mock()

    async def come() -> Any:
        return contents.pop()

    context.read = come
    parts = {"check": lambda _: None, "semaphore": CallLimits().receiving, "clock": ManualClock(), "heavy": HeavyWork()}
    async with _receive_one(context, add=lambda _: None, parse=len, **parts) as request:
        assert request == 9
        assert watched() is None


@pytest.mark.parametrize("method", ["grpc.health.v1.Health/Check", "compilefarm.v1.CompileService/Plan"])
@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
async def test_compressed_requests_are_not_unpacked(method: str, compression: grpc.Compression) -> None:
    # gRPC 1.62 made 400 MB of 400 KB, of strangers, too, before it refused them as too large.
    async with (
        serving() as gateway,
        grpc.aio.insecure_channel(
            gateway.address, compression=compression, options=[("grpc.max_send_message_length", -1)]
        ) as channel,
    ):
        with pytest.raises(Refused) as refused, refusals():
            await channel.unary_unary(f"/{method}")(bytes(8 * 1024 * 1024))
    assert refused.value.status == "UNIMPLEMENTED"


class Counted(asyncio.Future[None]):
    """A place in a line; counts what it is compared with."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return self is other

    __hash__ = asyncio.Future.__hash__


async def test_thousands_who_go_away_are_not_looked_for_among_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    semaphore = FairSemaphore("receiving", places=1, account_places=1)

    async def wait() -> None:
        async with semaphore.acquired("one"):
            await asyncio.Event().wait()

    monkeypatch.setattr(asyncio.get_running_loop(), "create_future", Counted)
    waiting = [asyncio.create_task(wait()) for _ in range(500)]
    await asyncio.sleep(0)
    # Those who came last go first: it would be the end of the line for each.
    for each in reversed(waiting):
        each.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert Counted.compared < 2 * len(waiting)


async def test_who_goes_away_when_a_timer_is_due_leaves_no_traceback() -> None:
    clock = ManualClock()
    watching = asyncio.create_task(pause(1.0, clock=clock))
    await clock.wait_for_timer(1.0)
    watching.cancel()
    # Before the task has had its turn to stop it. The event loop wrote what this raised, for each stranger's call.
    clock.advance(1.0)
    with pytest.raises(asyncio.CancelledError):
        await watching
