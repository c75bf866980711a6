"""Has the jobs that share a GPU measure on it one after the other: what runs beside a measurement makes it wrong."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

from compilefarm.core.file_locks import open_lock

log = logging.getLogger(__name__)

# It is held for one measurement, of a tenth of a second, or the calls of a verification. A child that was taken over
# may hold it for ever, which costs each job beside it this long, once, and the quality of what it measures.
LONGEST_WAIT_SECONDS = 20.0
_BETWEEN_ATTEMPTS_SECONDS = 0.002


class GpuLock:
    """The right to measure on a GPU, which one process at a time has.

    It is the lock of a file. The kernel takes it back when a process ends, however that ends; and a file that nobody in
    a sandbox can write can still be locked there.

    Args:
        file: that of the GPU (see `lock_file`); None: nobody else has the GPU.
        longest_wait_seconds: how long to wait for the lock. After that this process measures without it.
    """

    def __init__(self, file: Path | None, *, longest_wait_seconds: float = LONGEST_WAIT_SECONDS) -> None:
        self._file = file
        self._longest_wait_seconds = longest_wait_seconds
        # A measurement may consist of others.
        self._own = threading.RLock()
        self._depth = 0

    @contextmanager
    def held(self) -> Iterator[None]:
        """Waits for the lock and holds it within the context. One context may be within another."""
        with self._own:
            self._depth += 1
            try:
                with ExitStack() as lock:
                    if self._depth == 1 and self._file is not None:
                        self._take(self._file, lock)
                    yield
            finally:
                self._depth -= 1

    def _take(self, path: Path, lock: ExitStack) -> None:
        """Waits for the lock, which `lock` holds; without it where it is not to be had."""
        deadline = time.monotonic() + self._longest_wait_seconds
        problem = f"another job has had the GPU for {self._longest_wait_seconds:.0f} s"
        try:
            # Programs that this process starts do not inherit it, or would hold the lock as well.
            file = lock.enter_context(path.open("rb"))
            while not (is_locked := _is_locked(file)) and time.monotonic() < deadline:
                time.sleep(_BETWEEN_ATTEMPTS_SECONDS)
        except OSError as error:
            is_locked, problem = False, f"{path} cannot be locked ({error.strerror})"
        if not is_locked:
            self._file = None
            log.warning("from now on this job measures beside others, which may disturb it: %s", problem)


def lock_file(folder: Path, device: str) -> Path | None:
    """Returns the file that stands for a GPU, which all farms of this user on this host share; None if it cannot be
    made.

    Args:
        folder: where such files lie. It is made.
        device: the GPU, as CUDA_VISIBLE_DEVICES names it.
    """
    path = folder / hashlib.sha256(device.encode()).hexdigest()[:16]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # To be read alone: a child may lock it, and write nothing there.
        os.close(open_lock(path, mode=0o400, access=os.O_RDONLY))
    except OSError as error:
        log.warning("jobs that share a GPU may disturb each other's measurements: no %s (%s)", path, error.strerror)
        return None
    return path


def _is_locked(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
