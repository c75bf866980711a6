"""Bytes that are no text where gRPC expects some end no server, and fill no log: anybody may send them."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from compilefarm.service.testing import calling, serving
from tests.hostile.frames import PREFACE, SETTINGS, call
from tests.service.signers import have_signed, signing

NO_TEXT = b"\xff\xfe"
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def calls(method: bytes) -> bytes:
    """Calls of methods whose name is no text, and of one with such metadata."""
    named = [b"", b"/", NO_TEXT, b"/" + NO_TEXT, b"/" + NO_TEXT + b"/" + NO_TEXT, method + NO_TEXT]
    said = [call(method=name, stream=2 * number + 1) for number, name in enumerate(named)]
    metadata = {b"authorization": b"Bearer " + NO_TEXT, b"x": NO_TEXT, b"user-agent": NO_TEXT}
    return b"".join([*said, call(method=method, stream=2 * len(named) + 1, metadata=metadata)])


async def have_called(connection: Connection, method: bytes) -> None:
    """Makes such calls, and waits until there is something to read of the last, or the connection has ended."""
    reader, writer = connection
    writer.write(PREFACE + SETTINGS + calls(method))
    # The frames of answers to the last call are for its stream.
    last = calls(method).count(b"application/grpc") * 2 - 1
    read = b""
    while last.to_bytes(4, "big") not in read and (piece := await reader.read(65536)):
        read += piece
    writer.close()


async def test_a_gateway_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with serving() as gateway, calling(gateway.address) as one:
        host, _, port = gateway.address.rpartition(":")
        for _ in range(3):
            connection = await asyncio.open_connection(host, int(port))
            await have_called(connection, b"/compilefarm.v1.AdminService/Status")
        await one.status()
    async with serving() as gateway, calling(gateway.address) as one:
        await one.status()
    assert caplog.text == ""


async def test_a_signer_goes_on(tmp_path: Path) -> None:
    async with signing(tmp_path) as address:
        connection = await asyncio.open_unix_connection(address.removeprefix("unix:"))
        await have_called(connection, b"/compilefarm.v1.SignerService/GetPublicKey")
        await have_signed(address)
