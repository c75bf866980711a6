"""Whoever connects to the port for figures and says nothing, or too much, is ended and keeps nobody away."""

from __future__ import annotations

import asyncio
import socket
import urllib.request
from collections.abc import AsyncIterator
from contextlib import ExitStack, closing, suppress

import pytest

from compilefarm.service.config import GatewayConfig
from compilefarm.service.metrics_endpoint import MOST_CONNECTIONS, MOST_HEAD_BYTES, _Handler
from compilefarm.service.testing import serving

MEASURED = GatewayConfig(listen="127.0.0.1:0", metrics_listen="127.0.0.1:0")
HEAD = b"GET /metrics HTTP/1.1\r\nHost: farm\r\n"


@pytest.fixture
async def address() -> AsyncIterator[tuple[str, int]]:
    async with serving(config=MEASURED) as gateway:
        host, _, port = gateway.metrics_address.rpartition(":")
        yield host, int(port)


def fetch(address: tuple[str, int]) -> bytes:
    with urllib.request.urlopen(f"http://{address[0]}:{address[1]}/metrics", timeout=30) as response:
        content: bytes = response.read()
    return content


def connected(address: tuple[str, int]) -> closing[socket.socket]:
    return closing(socket.create_connection(address, timeout=30))


def send(connection: socket.socket, content: bytes) -> None:
    # The farm may have ended it by now.
    with suppress(ConnectionError):
        connection.sendall(content)


def received(connection: socket.socket) -> bytes:
    """All that comes until the other end closes."""
    content = b""
    with suppress(ConnectionResetError):
        while chunk := connection.recv(65536):
            content += chunk
    return content


@pytest.mark.parametrize("said", [b"", HEAD], ids=["nothing", "half a request"])
async def test_silent_connections_are_bounded_and_keep_nobody_away(
    address: tuple[str, int], said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Those that are ended are because there are too many, and not since they say nothing.
    monkeypatch.setattr(_Handler, "timeout", 300.0)

    def crowd() -> None:
        with ExitStack() as stack:
            silent = [stack.enter_context(connected(address)) for _ in range(3 * MOST_CONNECTIONS)]
            for connection in silent:
                send(connection, said)
            assert b"compilefarm_" in fetch(address)
            for connection in silent[: 2 * MOST_CONNECTIONS]:
                assert received(connection) == b""

    await asyncio.to_thread(crowd)


@pytest.mark.parametrize("said", [b"", HEAD], ids=["nothing", "half a request"])
async def test_a_silent_connection_ends(address: tuple[str, int], said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Handler, "timeout", 0.2)

    def wait() -> bytes:
        with connected(address) as connection:
            connection.sendall(said)
            return received(connection)

    assert await asyncio.to_thread(wait) == b""


async def test_a_request_without_end_is_not_read(address: tuple[str, int]) -> None:
    line = b"x: " + b"a" * (MOST_HEAD_BYTES // 2) + b"\r\n"

    def ask(lines: int) -> bytes:
        with connected(address) as connection:
            send(connection, HEAD + line * lines + b"\r\n")
            return received(connection)

    assert b"compilefarm_" in await asyncio.to_thread(ask, 1)
    assert await asyncio.to_thread(ask, 2) == b""
