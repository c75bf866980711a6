"""Runs the probe in a child in its sandbox, and prints what it found: `python inside.py`, as any user.

What it is told to reach stands in variables of this process.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from compilefarm.v1.child_pb2 import ChildTask
from compilefarm.worker.fork_server import ForkServer
from compilefarm.worker.process import ChildProcess, ChildSettings
from compilefarm.worker.sandbox import open_sandbox

PASSED_ON = ("HIDDEN", "PORT", "SIGNING_KEY", "SOCKET_NAME", "STORE", "STRANGER")


async def main() -> None:
    variables = {name: os.environ[name] for name in PASSED_ON}
    server = ForkServer((sys.executable, str(Path(__file__).with_name("probe.py"))), environment=variables)
    settings = ChildSettings(server=server, sandbox=open_sandbox(interpreter=sys.executable, gpu=False))
    child = await ChildProcess.start(settings)
    try:
        await child.ready()
        async for message in child.messages(ChildTask()):
            print(message.blob.content.decode())
            break
    finally:
        await child.end()
        await server.close()


if __name__ == "__main__":
    asyncio.run(main())
