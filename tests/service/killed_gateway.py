"""A gateway whose one worker never ends a compile: `killed_gateway.py FOLDER`. Prints its address; to be killed."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from compilefarm.service.testing import HeldCompiles, ManualClock, ScriptedPool, serving
from compilefarm.store.opening import open_store


async def main() -> None:
    folder = Path(sys.argv[1])
    store = await open_store(str(folder / "store"))
    # Of the same time as that of whoever comes after it.
    async with serving(pool=ScriptedPool(HeldCompiles()), store=store, clock=ManualClock()) as gateway:
        print(gateway.address, flush=True)
        await asyncio.Event().wait()


asyncio.run(main())
