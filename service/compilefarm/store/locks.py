"""Files whose locks say who uses a folder."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path


def open_lock(path: Path) -> int:
    """Opens a file to lock it, which is made if it is not there. Whoever can open it, were it only to read it, can lock
    it and keep everybody else from the folder; so users of the host who are not of its group cannot.

    Raises:
        OSError: it cannot be opened.
    """
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o660)
    found = os.fstat(lock)
    if found.st_uid == os.geteuid() and found.st_mode & stat.S_IRWXO:
        # Earlier releases made it so that everybody could. Some file systems give all files one mode.
        with suppress(OSError):
            os.fchmod(lock, stat.S_IMODE(found.st_mode) & ~stat.S_IRWXO)
    return lock
