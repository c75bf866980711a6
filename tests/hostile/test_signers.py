"""A gateway that was taken over keeps no other from having manifests signed, nor does it take the signer's memory."""

from __future__ import annotations

import asyncio
import resource
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.hostile.frames import PREFACE, SETTINGS, calls_with_metadata
from tests.service.signers import have_signed, signing, signing_command

FILES = 256


def test_connections_of_one_gateway_leave_files_for_others(tmp_path: Path) -> None:
    one, other = (f"unix:{tmp_path / name}" for name in ("one.sock", "other.sock"))
    limit = ("sh", "-c", f'ulimit -n {FILES}; exec "$@"', "sh")
    with signing_command(tmp_path, one, other, begin=limit), ExitStack() as stack:
        for _ in range(2 * FILES):
            connection = stack.enter_context(socket.socket(socket.AF_UNIX))
            connection.setblocking(False)
            try:
                connection.connect(one.removeprefix("unix:"))
                connection.send(PREFACE + SETTINGS)
            except (BlockingIOError, BrokenPipeError):
                # More than the socket's line holds, or ended already.
                continue
        asyncio.run(have_signed(other))


@pytest.mark.timeout(60)
async def test_a_gateway_that_sends_metadata_without_an_end_is_disconnected_at_once(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    async with signing(tmp_path / "one") as address, signing(tmp_path / "other") as other:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        # Its clock stands still: it does not wait for the next look at connections.
        for _ in range(3):
            reader, writer = await asyncio.open_unix_connection(address.removeprefix("unix:"))
            writer.write(PREFACE + SETTINGS)
            for call in calls_with_metadata(100, method="/compilefarm.v1.SignerService/Sign"):
                writer.write(call)
            while await _is_open(reader):
                pass
            writer.close()
        await have_signed(other)
        grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    # It was 600 MB, and stayed.
    assert grown_kib < 400 * 1024


async def _is_open(reader: asyncio.StreamReader) -> bool:
    try:
        return bool(await reader.read(65536))
    except ConnectionError:
        return False
