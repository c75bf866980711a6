"""Reads named pipes. A thread that waited for one would keep a test that fails from ending."""

from __future__ import annotations

import asyncio
import os

_LONGEST = 1000


async def read_pipe(descriptor: int) -> bytes:
    """Waits for what is written to a pipe, and returns it: a thousand bytes at most."""
    loop = asyncio.get_running_loop()
    come = asyncio.Event()
    loop.add_reader(descriptor, come.set)
    try:
        await come.wait()
    finally:
        loop.remove_reader(descriptor)
    return os.read(descriptor, _LONGEST)
