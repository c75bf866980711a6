"""The folder of a gateway on its own disk: one gateway uses it, and earlier releases kept the journal there."""

from __future__ import annotations

import asyncio
import fcntl
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from compilefarm.core.errors import StoreUnavailable
from compilefarm.core.file_locks import open_lock
from compilefarm.service.config import CannotStart
from compilefarm.service.journal import Journal
from compilefarm.service.journal_entries import JournalEntry

log = logging.getLogger(__name__)

_LOCK = ".lock"
_STAGING = ".staging"


@contextmanager
def using(folder: Path) -> Iterator[None]:
    """Has the folder for one gateway alone; that ends with the process, however that ends.

    Raises:
        CannotStart: the folder cannot be used, or another gateway uses it.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = open(open_lock(folder / _LOCK), "wb")  # noqa: SIM115
    except OSError as error:
        raise CannotStart(f"{folder} cannot be used ({error.strerror}): name another folder with --state") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise CannotStart(
                f"another service uses {folder}: end it, or give this one another with --state"
            ) from error
        yield


async def bring_over(folder: Path, *, journal: Journal) -> list[JournalEntry]:
    """Moves what an earlier release has left in the folder to a journal. Returns the entries, the oldest first."""
    moved: list[JournalEntry] = []
    try:
        for path in await asyncio.to_thread(_left_in, folder):
            moved.append(await journal.inherit(path.name, await asyncio.to_thread(path.read_bytes)))
            await asyncio.to_thread(path.unlink)
    except (OSError, StoreUnavailable) as error:
        log.warning("prewarms that an earlier release had accepted stay in %s until the next start: %s", folder, error)
    return moved


def _left_in(folder: Path) -> list[Path]:
    """What was accepted. What was never written whole was never acknowledged."""
    if not folder.is_dir():
        return []
    files = [path for path in folder.iterdir() if not path.name.startswith(".") and not path.name.endswith(_STAGING)]
    return sorted(files, key=lambda path: (path.stat().st_mtime_ns, path.name))
