"""Writes the sample artifact into DIR and kills itself before its STEPth write (or after the last one).

Run as a program: killed_writer.py DIR STEP
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from compilefarm.store.backend import Backend, WrappingBackend
from compilefarm.store.layout import BLOBS, MANIFESTS
from compilefarm.store.local import open_directory
from compilefarm.store.opening import build_store
from compilefarm.store.testing import sample_artifact, sample_key


class KillingBackend(WrappingBackend):
    def __init__(self, backend: Backend, *, step: int) -> None:
        super().__init__(backend)
        self._steps_left = step

    async def create(self, path: str, *, content: bytes) -> bool:
        if not path.startswith((BLOBS, MANIFESTS)):
            return await super().create(path, content=content)
        if self._steps_left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self._steps_left -= 1
        return await super().create(path, content=content)


async def main(directory: str, step: int) -> None:
    store = await build_store(KillingBackend(open_directory(directory), step=step))
    artifact = sample_artifact(sample_key("job"))
    await store.put_artifact(artifact.manifest, blobs=artifact.blobs)
    os.kill(os.getpid(), signal.SIGKILL)


asyncio.run(main(sys.argv[1], int(sys.argv[2])))
