"""Metadata without an end: a byte of a request may name an entry of any size, which anybody may send."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator

import pytest

from compilefarm.service.connections import LOOK_SECONDS
from compilefarm.service.interceptor import MOST_METADATA
from compilefarm.service.testing import ManualClock, Refused, calling, refusals, serving
from compilefarm.v1.admin_service_pb2 import StatusRequest
from compilefarm.v1.admin_service_pb2_grpc import AdminServiceStub

# RFC 9113, 4.1 and 6.2; RFC 7541, 6.1 and appendix A: entry 15 is "accept-charset", without a value.
_HEADERS, _SETTINGS, _END_HEADERS = 1, 4, 4
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_ACCEPT_CHARSET = b"\x8f"
_ENTRIES = 12_000


def _frame(kind: int, *, flags: int = 0, stream: int = 0, content: bytes = b"") -> bytes:
    return struct.pack(">I", len(content))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + content


def _calls(count: int) -> Iterator[bytes]:
    named = {
        b":method": b"POST", b":scheme": b"http", b":path": b"/compilefarm.v1.AdminService/Status", b":authority": b"x",
        b"content-type": b"application/grpc", b"te": b"trailers",
    }  # fmt: skip
    said = b"".join(b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value for name, value in named.items())
    for number in range(count):
        content = said + _ACCEPT_CHARSET * _ENTRIES
        yield _frame(_HEADERS, flags=_END_HEADERS, stream=2 * number + 1, content=content)


@pytest.mark.timeout(60)
async def test_a_connection_that_sends_metadata_without_an_end_is_ended_at_once() -> None:
    clock = ManualClock()
    async with (
        serving(clock=clock) as gateway,
        calling(gateway.address) as one,
    ):
        host, _, port = gateway.address.rpartition(":")
        await clock.wait_for_timer(LOOK_SECONDS)
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(_PREFACE + _frame(_SETTINGS))
        for call in _calls(20):
            writer.write(call)
        # The clock stands still: it does not wait for the next look at connections.
        while await reader.read(65536):
            pass
        writer.close()
        await one.status()


async def test_calls_with_more_metadata_than_clients_send_are_refused() -> None:
    async with serving() as gateway, calling(gateway.address) as calls:
        status = AdminServiceStub(calls.channel).Status
        with pytest.raises(Refused, match="entries of metadata") as refused, refusals():
            await status(StatusRequest(), metadata=[(f"x-{number}", "") for number in range(MOST_METADATA)])
        assert refused.value.status == "RESOURCE_EXHAUSTED"
        await status(StatusRequest(), metadata=[(f"x-{number}", "") for number in range(MOST_METADATA // 2)])
