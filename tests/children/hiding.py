"""Runs a child that runs a program which may not be read, and prints how it ended: `python hiding.py [--none]`."""

from __future__ import annotations

import asyncio
import sys

from compilefarm.core.errors import ProcessDied
from compilefarm.worker.sandbox import SandboxUnavailable, open_sandbox
from compilefarm.worker.testing import child_settings
from tests.children.jobs import JOB, supervising


async def main() -> None:
    try:
        sandbox = None if sys.argv[1:] else open_sandbox(interpreter=sys.executable, gpu=False)
    except SandboxUnavailable as error:
        print(f"no sandbox: {error}")
        return
    async with supervising(child_settings("run-what-may-not-be-read", sandbox=sandbox)) as supervisor:
        try:
            print(await supervisor.run(JOB, on_phase=lambda _: None))
        except ProcessDied as died:
            print(died)


if __name__ == "__main__":
    asyncio.run(main())
