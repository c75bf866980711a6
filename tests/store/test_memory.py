"""The store in memory, which `serve --store memory:` and most tests have."""

from __future__ import annotations

import subprocess
import sys

LISTING_WHILE_REMOVING = """
import asyncio, os
from compilefarm.store.opening import open_backend

async def run():
    backend = await open_backend("memory:", create=True)

    async def rewrite(number):
        for _ in range(300):
            await backend.touch(f"folder/{number}/object")
            await backend.delete(f"folder/{number}/object")

    async def listing():
        for _ in range(1000):
            [stored async for stored in backend.objects("folder")]

    await asyncio.gather(listing(), *map(rewrite, range(8)))

asyncio.run(run())
# How obstore's threads end when the interpreter does is not asked here.
os._exit(0)
"""


def test_it_is_listed_while_objects_are_removed() -> None:
    # With a deadlock not even a signal's handler would run there.
    done = subprocess.run([sys.executable, "-c", LISTING_WHILE_REMOVING], timeout=60, check=False)
    assert done.returncode == 0
