"""A disk that can be full."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

_DISK_MB = 256
_PIECE_BYTES = 1 << 16


class Disk(Protocol):
    """Where a farm keeps everything.

    Attributes:
        folder: the place.
        kind: what it is, in words.
    """

    folder: Path
    kind: str

    def fill(self, process: int) -> None:
        """Has no room left for the gateway that is this process."""

    def empty(self, process: int) -> None:
        """Has room again."""


class _Mounted:
    """A file system of its own, with something large on it when it is full."""

    kind = "a full file system, ENOSPC"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def fill(self, process: int) -> None:
        with self._ballast.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(_PIECE_BYTES))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise

    def empty(self, process: int) -> None:
        self._ballast.unlink()


class _Forbidden:
    """A folder in which the gateway may write no byte when it is full."""

    kind = "no byte may be written, EFBIG: this user cannot mount a small file system"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fill(self, process: int) -> None:
        _, most = resource.prlimit(process, resource.RLIMIT_FSIZE)
        resource.prlimit(process, resource.RLIMIT_FSIZE, (0, most))

    def empty(self, process: int) -> None:
        _, most = resource.prlimit(process, resource.RLIMIT_FSIZE)
        resource.prlimit(process, resource.RLIMIT_FSIZE, (most, most))


@contextmanager
def small_disk(folder: Path) -> Iterator[Disk]:
    """A disk at a folder: a file system in memory where this user can mount one."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_MB}m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, stderr=subprocess.DEVNULL).returncode != 0:
        yield _Forbidden(folder)
        return
    try:
        yield _Mounted(folder)
    finally:
        # What was killed a moment ago may still have something open there.
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
