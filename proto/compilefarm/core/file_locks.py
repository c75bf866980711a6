"""Files whose locks say who uses something: a folder, or a GPU."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path


def open_lock(path: Path, *, mode: int = 0o660, access: int = os.O_RDWR) -> int:
    """Opens a file to lock it, which is made if it is not there. Whoever can open it, were it only to read it, can lock
    it and keep everybody else from what it stands for; so it is closed to all for whom it is not meant.

    Args:
        path: where it is.
        mode: for whom it is meant; others lose their rights also where an earlier release gave them some.
        access: for what it is opened, as `os.open` has it.

    Raises:
        OSError: it cannot be opened.
    """
    lock = os.open(path, access | os.O_CREAT | os.O_CLOEXEC, mode)
    found = os.fstat(lock)
    if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) & ~mode:
        # Some file systems give all files one mode.
        with suppress(OSError):
            os.fchmod(lock, stat.S_IMODE(found.st_mode) & mode)
    return lock
