"""Writes into a store of its own in DIR/0, DIR/1, ..., and is killed before its first, second, ... step on the disk.

Run as a program: killed_writer.py DIR. Prints a line of JSON for every store: how its writer ended, before which step,
and which digests and keys had been acknowledged by then.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from compilefarm.core.digests import digest_of
from compilefarm.store.opening import open_store
from compilefarm.store.testing import sample_artifact, sample_key

STEPS = ("mkdir", "open", "fsync", "link", "rename", "unlink", "utime", "rmdir")


class Countdown:
    """Lets so many steps pass and kills the process before the next one."""

    def __init__(self, steps: int, *, log: int) -> None:
        self._steps_left = steps
        self._log = log

    def watch(self) -> None:
        for name in STEPS:
            setattr(os, name, self._watched(name, getattr(os, name)))

    def _watched(self, name: str, step: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if self._steps_left == 0:
                if name == "fsync" and "#" in os.readlink(f"/proc/self/fd/{arguments[0]}"):
                    # As if only a part had been written by now.
                    os.ftruncate(arguments[0], os.fstat(arguments[0]).st_size // 2)
                os.write(self._log, f"before {name}\n".encode())
                os.kill(os.getpid(), signal.SIGKILL)
            self._steps_left -= 1
            return step(*arguments, **options)

        return call


async def write(directory: str, steps: int, *, log: int) -> None:
    store = await open_store(directory)
    Countdown(steps, log=log).watch()
    artifact = sample_artifact(sample_key("job"))
    for content in (b"blob", b"blob"):
        await store.put_blob(content, digest=digest_of(content))
        os.write(log, f"{digest_of(content)}\n".encode())
    for _ in range(2):
        await store.put_artifact(artifact.manifest, blobs=artifact.blobs)
        os.write(log, f"{artifact.manifest.key}\n".encode())


def main(root: Path) -> None:
    for steps in count():
        reader, log = os.pipe()
        writer = os.fork()
        if writer == 0:
            asyncio.run(write(str(root / str(steps)), steps, log=log))
            os._exit(0)
        os.close(log)
        with open(reader) as file:
            said = file.read().split("\n")[:-1]
        code = os.waitstatus_to_exitcode(os.waitpid(writer, 0)[1])
        before = [line for line in said if line.startswith("before ")]
        print(
            json.dumps({"code": code, "before": before, "acknowledged": [each for each in said if each not in before]})
        )
        if code == 0:
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]))
