"""Private folders of children, also those that a farm left behind when it was killed."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path

log = logging.getLogger(__name__)

_PREFIX = "compilefarm-child-"
# A folder exists for a moment before it is locked.
_YOUNGEST_SECONDS = 60.0


class ScratchFolder:
    """A new folder, locked by this process for as long as it lives.

    Args:
        parent: where to make it; None is the system's place for temporary files.

    Raises:
        OSError: there is no room for it.
    """

    def __init__(self, parent: Path | None = None) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def remove(self) -> None:
        """Removes it with all that lies in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def remove_abandoned(parent: Path) -> None:
    """Removes folders whose processes are gone: the compiler's files of a large graph are gigabytes."""
    for path in parent.glob(f"{_PREFIX}*"):
        try:
            if _is_abandoned(path):
                shutil.rmtree(path)
                log.info("removed %s, which a killed farm left behind", path)
        except FileNotFoundError:
            # Another farm of this machine was faster.
            continue
        except OSError as error:
            log.warning("cannot remove %s, which a killed farm left behind: %s", path, error)


def _is_abandoned(path: Path) -> bool:
    found = path.lstat()
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    if not is_ours or found.st_mtime > time.time() - _YOUNGEST_SECONDS:
        return False
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        return True
    finally:
        os.close(lock)
