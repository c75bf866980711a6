"""Runs the probe in a child in its sandbox, and prints what it found: `python inside.py`, as any user.

What it is told to reach stands in variables of this process.
"""

from __future__ import annotations

import asyncio
import json
import os
import stat
import sys
from pathlib import Path

from compilefarm.v1.child_pb2 import ChildTask
from compilefarm.worker.fork_server import ForkServer
from compilefarm.worker.pool import _descriptors
from compilefarm.worker.process import ChildProcess, ChildSettings
from compilefarm.worker.sandbox import open_sandbox

PASSED_ON = ("HIDDEN", "PORT", "SIGNING_KEY", "SOCKET_NAME", "STORE", "STRANGER")


async def main() -> None:
    variables = {name: os.environ[name] for name in PASSED_ON}
    command = (sys.executable, str(Path(__file__).with_name("probe.py")), f"--descriptor-limit={_descriptors()}")
    server = ForkServer(command, environment=variables)
    settings = ChildSettings(server=server, sandbox=open_sandbox(interpreter=sys.executable, gpu=False))
    child = await ChildProcess.start(settings)
    try:
        await child.ready()
        async for message in child.messages(ChildTask()):
            told = json.loads(message.blob.content)
            print(
                json.dumps(told | {"planted": _open_to_others(child.folder), "another child": await _another(settings)})
            )
            break
    finally:
        await child.end()
        await server.close()


def _open_to_others(folder: Path) -> list[str]:
    """Programs in a folder that others can get at."""
    folders = (folder, *folder.parents)
    is_open = all(place.stat().st_mode & stat.S_IXOTH for place in folders)
    return [path.name for path in folder.iterdir() if is_open and path.stat().st_mode & stat.S_ISUID]


async def _another(settings: ChildSettings) -> str:
    """What becomes of a child that is started beside the first."""
    try:
        child = await ChildProcess.start(settings)
    except OSError as error:
        return str(error)
    try:
        await child.ready()
        return "ready"
    finally:
        await child.end()


if __name__ == "__main__":
    asyncio.run(main())
