"""Metadata without an end: a byte of a request may name an entry of any size, which anybody may send, and gRPC holds
connections to no limit before they have acknowledged it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress

import pytest

from compilefarm.service import server_options
from compilefarm.service.connection_watch import LOOK_SECONDS
from compilefarm.service.refusals import MOST_METADATA
from compilefarm.service.testing import Calls, ManualClock, Refused, calling, refusals, serving
from compilefarm.v1.admin_service_pb2 import StatusRequest
from compilefarm.v1.admin_service_pb2_grpc import AdminServiceStub
from tests.hostile.frames import ACKNOWLEDGED, PREFACE, SETTINGS, calls_with_a_long_entry, calls_with_metadata


@pytest.mark.timeout(60)
@pytest.mark.parametrize("method", ["/compilefarm.v1.AdminService/Status", "/no.such/Method"])
@pytest.mark.parametrize("calls", [calls_with_metadata, calls_with_a_long_entry])
async def test_a_connection_that_sends_metadata_without_an_end_is_ended_at_once(
    method: str, calls: Callable[..., Iterable[bytes]]
) -> None:
    clock = ManualClock()
    async with (
        serving(clock=clock) as gateway,
        calling(gateway.address) as one,
    ):
        host, _, port = gateway.address.rpartition(":")
        await clock.wait_for_timer(LOOK_SECONDS)
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(PREFACE + SETTINGS)
        for call in calls(20, method=method):
            writer.write(call)
        # The clock stands still: it does not wait for the next look at connections.
        # It is reset where some of what it sent was not read.
        with suppress(ConnectionResetError):
            while await reader.read(65536):
                pass
        writer.close()
        await one.status()


async def test_calls_with_more_metadata_than_clients_send_are_refused() -> None:
    async with serving() as gateway, calling(gateway.address) as one, calling(gateway.address) as other:
        with pytest.raises(Refused) as refused, refusals():
            await ask(one, entries=MOST_METADATA)
        # Its connection is ended, perhaps before it has read why.
        assert refused.value.status in ("RESOURCE_EXHAUSTED", "UNAVAILABLE")
        await ask(other, entries=MOST_METADATA // 2)


async def test_a_connection_that_does_not_acknowledge_limits_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_options, "_ACKNOWLEDGED_SECONDS", 0.1)
    async with serving() as gateway, calling(gateway.address) as one:
        await one.status()
        host, _, port = gateway.address.rpartition(":")
        bound, unbound = [await asyncio.open_connection(host, int(port)) for _ in range(2)]
        bound[1].write(PREFACE + SETTINGS + ACKNOWLEDGED)
        unbound[1].write(PREFACE + SETTINGS)
        bound_ends = asyncio.create_task(bound[0].read())
        await unbound[0].read()
        assert not bound_ends.done()
        await one.status()
        for _, writer in (bound, unbound):
            writer.close()
        await bound_ends


async def ask(calls: Calls, *, entries: int) -> None:
    """Asks for the state of the farm with so many entries of metadata."""
    metadata = [(f"x-{number}", "") for number in range(entries)]
    await AdminServiceStub(calls.channel).Status(StatusRequest(), metadata=metadata)
