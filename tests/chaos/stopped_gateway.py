"""Gateways that are killed before a step of a write: `python -m tests.chaos.stopped_gateway FOLDER`.

For every line of input it starts a gateway on the same folder, with workers that compile at once, and says its address
and process as JSON. A number has it killed before it takes that many steps on the disk and one more; anything else lets
it be. How it ended comes as a line of JSON, too. Which step it was goes to the file `stops`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from compilefarm.service.testing import ScriptedPool, serving
from compilefarm.store.opening import open_store
from tests.store.killed_writer import Countdown


async def serve(folder: Path, steps: str) -> None:
    store = await open_store(str(folder / "store"))
    stops = os.open(folder / "stops", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    async with serving(pool=ScriptedPool(), store=store) as gateway:
        if steps.isdecimal():
            Countdown(int(steps), log=stops).watch()
        print(json.dumps({"address": gateway.address, "process": os.getpid()}), flush=True)
        await asyncio.Event().wait()


def main(folder: Path) -> None:
    # All that a gateway imports is imported once. gRPC may be forked as long as nothing of it has been made.
    for line in sys.stdin:
        process = os.fork()
        if process == 0:
            asyncio.run(serve(folder, line.strip()))
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        print(json.dumps({"code": code}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
