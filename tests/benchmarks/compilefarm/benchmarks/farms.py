"""Farms that a command starts for itself, as a user would."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from compilefarm.cli.farm import admin_at
from compilefarm.client.config import TRUST
from compilefarm.core.errors import FarmError
from compilefarm.serving.farm import READY_LINE
from compilefarm.serving.safeguards import root_allowed
from compilefarm.v1.admin_service_pb2 import StatusRequest

_SECONDS_BETWEEN_LOOKS = 0.2
_LONGEST_WAIT_SECONDS = 180.0


class FarmNotReady(FarmError):
    """A farm did not start, or does not come to rest."""


@contextlib.contextmanager
def serving(folder: Path, *, device: str, options: Sequence[str] = ()) -> Iterator[str]:
    """A farm on a free port, and its address. What this process was told about trusting another farm is forgotten.

    Args:
        folder: for its store, which is kept if it is there, and its log.
        device: of its workers.
        options: further ones of `compilefarm serve`.

    Raises:
        FarmNotReady: it did not start.
    """
    for name in TRUST:
        # It neither knows a caller nor signs.
        os.environ.pop(name, None)
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "compilefarm.cli.main", "serve", "--listen", "127.0.0.1:0", *root_allowed()]
    log = folder / "farm.log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [
                *command,
                *("--store", str(folder / "store"), "--state", str(folder / "state"), "--device", device),
                *options,
            ],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line.startswith(READY_LINE):
            process.wait()
            raise FarmNotReady(f"the farm did not start:\n{log.read_text()[-3000:]}")
        yield line.removeprefix(READY_LINE).strip()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
        process.stdout.close()


def wait_until_quiet(address: str) -> None:
    """Waits until a farm is ready for its next job. Its getting ready would slow down what is measured next.

    Raises:
        FarmNotReady: it takes too long.
    """
    latest = time.monotonic() + _LONGEST_WAIT_SECONDS
    with admin_at(address) as service:
        while not all(worker.is_warm for worker in service.Status(StatusRequest()).workers):
            if time.monotonic() > latest:
                raise FarmNotReady(f"the farm's workers are not ready again after {_LONGEST_WAIT_SECONDS:.0f} s")
            time.sleep(_SECONDS_BETWEEN_LOOKS)
