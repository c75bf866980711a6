"""Private folders of children, also those that a farm left behind when it was killed."""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import stat
import tempfile
import time
from pathlib import Path

log = logging.getLogger(__name__)

_PREFIX = "compilefarm-child-"
# A folder exists for a moment before it is locked, and has another name until then: a farm that was killed and starts
# again at once finds all that it left.
_NEW_PREFIX = "compilefarm-new-"
_YOUNGEST_NEW_SECONDS = 60.0


class ScratchFolder:
    """A new folder, locked by this process for as long as it lives.

    Whoever may use it owns it and may open it to everybody, with programs in it that run with its owner's rights. So it
    lies in another, which nobody else may enter.

    Attributes:
        path: the folder.

    Args:
        parent: where to make it; None is the system's place for temporary files.

    Raises:
        OSError: there is no room for it.
    """

    def __init__(self, parent: Path | None = None) -> None:
        self._around = Path(tempfile.mkdtemp(prefix=_NEW_PREFIX, dir=parent))
        self._lock = os.open(self._around, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            self._around = self._around.rename(self._around.with_name(f"{_PREFIX}{secrets.token_hex(8)}"))
            self.path = self._around / "own"
            self.path.mkdir(mode=0o700)
        except OSError:
            self.remove()
            raise

    def remove(self) -> None:
        """Removes it with all that lies in it, as far as this user may."""
        try:
            remove_tree(self._around)
        except OSError as error:
            log.warning("cannot remove %s: %s", self._around, error)
        finally:
            os.close(self._lock)


def remove_abandoned(parent: Path) -> None:
    """Removes folders whose processes are gone: the compiler's files of a large graph are gigabytes."""
    for path in [*parent.glob(f"{_PREFIX}*"), *parent.glob(f"{_NEW_PREFIX}*")]:
        try:
            if _is_abandoned(path):
                remove_tree(path)
                log.info("removed %s, which a killed farm left behind", path)
        except FileNotFoundError:
            # Another farm of this machine was faster.
            continue
        except OSError as error:
            log.warning("cannot remove %s, which a killed farm left behind: %s", path, error)


def remove_tree(folder: Path) -> None:
    """Removes a folder with all that lies in it, in which nothing runs any more.

    A child may have left folders that are closed, and some that are deeper than a path or a stack can be
    (shutil.rmtree). So each folder in it is brought to the top before it is emptied.

    Raises:
        OSError: something cannot be removed.
    """
    top = _open_folder(folder)
    try:
        waiting = _emptied(top, top=top)
        while waiting:
            name = waiting.pop()
            here = _open_folder(name, within=top)
            try:
                waiting += _emptied(here, top=top)
            finally:
                os.close(here)
            os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)
    folder.rmdir()


def _emptied(here: int, *, top: int) -> list[str]:
    """Removes the files in a folder, and brings the folders in it to the top.

    Returns:
        Names that these have there.
    """
    brought = []
    with os.scandir(here) as entries:
        for entry in list(entries):
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.name, dir_fd=here)
                continue
            # It has to be open to be moved (rename(2)).
            os.close(_open_folder(entry.name, within=here))
            brought.append(secrets.token_hex(16))
            os.rename(entry.name, brought[-1], src_dir_fd=here, dst_dir_fd=top)
    return brought


def _open_folder(name: str | Path, *, within: int | None = None) -> int:
    """A folder that its owner may read and write from now on."""
    handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=within)
    try:
        os.chmod(f"/proc/self/fd/{handle}", 0o700)
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=handle)
    finally:
        os.close(handle)


def _is_abandoned(path: Path) -> bool:
    found = path.lstat()
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    # By a clock that was set back it may be of the future, and old.
    is_young = abs(time.time() - found.st_mtime) < _YOUNGEST_NEW_SECONDS
    if not is_ours or (path.name.startswith(_NEW_PREFIX) and is_young):
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
