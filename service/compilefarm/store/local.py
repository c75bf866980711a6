"""A directory as the store's backend.

obstore lists, moves and deletes; `directory_objects` reads. Writing is done here, because obstore's local store does
not flush: a power failure could take away an object that was acknowledged, or leave one of zeros. An object is written
as `name#N`, flushed, and then linked to `name`: whoever sees it sees all of it. obstore does not list such staging
files, but nobody removes those of a killed process; that is done here too.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import math
import os
import re
import secrets
import shutil
import stat
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from compilefarm.core.errors import StoreUnavailable
from compilefarm.core.file_locks import open_lock
from compilefarm.store.backend import Backend, WrappingBackend
from compilefarm.store.directory_objects import DirectoryObjects
from compilefarm.store.layout import (
    BLOBS,
    CHECKS,
    ENVIRONMENTS,
    FAILURES,
    JOURNAL,
    KEY_LEASES,
    MANIFESTS,
    PROBES,
    SESSIONS,
    SET_ASIDE,
    STAGING,
    TOOLCHAINS,
)
from compilefarm.store.read_only import READ_ONLY_REMEDY, ReadOnlyBackend

# No single write takes that long.
ABANDONED_AFTER_SECONDS = 3600
LOCK = ".lock"
# Where objects are written, and what was being written may be left.
_WRITTEN_AREAS = (
    BLOBS, MANIFESTS, CHECKS, SET_ASIDE, ENVIRONMENTS, FAILURES, JOURNAL, KEY_LEASES, PROBES, STAGING, TOOLCHAINS,
)  # fmt: skip
_STAGING_NAME = re.compile(r"[0-9a-f-]+(\.reason|\.failed)?#[0-9]+")
# A folder may be removed, because it has become empty, at the moment when somebody is about to write into it; and a key
# that is leased may be given back by another service at the moment when it was found to be leased.
_MOST_TRIALS = 100
_logger = logging.getLogger(__name__)
Result = TypeVar("Result")


def open_directory(location: str, *, create: bool = True, read_only: bool = False) -> Backend:
    """Opens a directory and removes staging files that nobody will finish.

    Args:
        location: its path; a leading "~" is the home directory.
        create: whether it is created if it is missing.
        read_only: whether nothing is written, not even a lock.

    Raises:
        StoreUnavailable: it is not there, or cannot be created or read.
    """
    directory = Path(os.path.expanduser(location))
    try:
        if create and not read_only:
            # Graphs and programs of all namespaces lie in it: they are nothing for other users of this host.
            directory.mkdir(mode=0o770, parents=True, exist_ok=True)
        root = directory.resolve(strict=True)
        return _reading(root) if read_only else LocalBackend(root)
    except OSError as error:
        is_readable = not read_only and os.access(directory, os.R_OK | os.X_OK)
        raise StoreUnavailable(
            f"the store directory {directory} cannot be used: {error.strerror}; "
            f"name a directory that this user may create and write{f'; {READ_ONLY_REMEDY}' if is_readable else ''}"
        ) from error


def _reading(root: Path) -> Backend:
    return ReadOnlyBackend(DirectoryObjects(root))


class LocalBackend(WrappingBackend):
    """Objects as the files of a directory.

    Args:
        root: the directory.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(DirectoryObjects(root))
        self._root = root
        lock = open_lock(root / LOCK)
        weakref.finalize(self, os.close, lock)
        # Alone, whatever is half written stays so. Otherwise others may be writing at this moment.
        alone = _try_lock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _sweep(root, written_before=math.inf if alone else time.time() - ABANDONED_AFTER_SECONDS)
        if alone:
            _end_sessions(root)
        _share(lock, path=root / LOCK)

    async def create(self, path: str, *, content: bytes) -> bool:
        return await self._run(f"write {path}", lambda: self._create(self._root / path, content=content))

    async def create_from(self, path: str, *, file: Path) -> bool:
        return await self._run(f"write {path}", lambda: self._create_from(self._root / path, file=file))

    @property
    def staging(self) -> Path:
        return self._root / STAGING

    async def settle(self, path: str) -> None:
        await self._run(f"flush {path}", lambda: self._settle(self._root / path))

    async def touch(self, path: str) -> None:
        await self._run(f"write {path}", lambda: _touch(self._root / path))

    async def move(self, path: str, *, target: str) -> bool:
        moved = await super().move(path, target=target)
        await self._run(f"move {path}", lambda: self._remove_empty(self._root / path))
        return moved

    async def delete(self, path: str) -> None:
        await super().delete(path)
        await self._run(f"delete {path}", lambda: self._remove_empty(self._root / path))

    async def _run(self, action: str, work: Callable[[], Result]) -> Result:
        try:
            return await asyncio.to_thread(work)
        except OSError as error:
            raise StoreUnavailable(
                f"the store at {self.location} could not {action}: {error.strerror}; "
                "check that it exists, can be written and has free space"
            ) from error

    def _create(self, path: Path, *, content: bytes) -> bool:
        staging = path.with_name(f"{path.name}#{secrets.randbits(62)}")
        descriptor = _open_new(staging)
        try:
            with open(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(descriptor)
            return _try_again(lambda: self._take_name(path, file=staging), path=path)
        finally:
            os.unlink(staging)

    def _create_from(self, path: Path, *, file: Path) -> bool:
        _flush(file)
        return _try_again(lambda: self._take_name(path, file=file), path=path)

    def _take_name(self, path: Path, *, file: Path) -> bool:
        _make_folder(path.parent)
        created = _link(file, path)
        self._flush(path)
        return created

    def _settle(self, path: Path) -> None:
        # What is gone has nothing to lose.
        with suppress(FileNotFoundError):
            self._flush(path)

    def _flush(self, path: Path) -> None:
        for each in self._up_from(path):
            _flush(each)

    def _up_from(self, path: Path) -> Iterator[Path]:
        # The file first, then every folder up to the root: any of them may be new, and its name lies in the one above.
        while path != self._root:
            yield path
            path = path.parent
        yield self._root

    def _remove_empty(self, path: Path) -> None:
        # So that the folders of keys that were evicted are not listed for ever.
        while (path := path.parent) != self._root:
            try:
                os.rmdir(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY, errno.ENOTDIR):
                    raise
                return


def _open_new(staging: Path) -> int:
    def open_new() -> int:
        _make_folder(staging.parent)
        return os.open(staging, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)

    return _try_again(open_new, path=staging)


def _make_folder(folder: Path) -> None:
    """Makes a folder, if it is not there.

    Raises:
        FileNotFoundError: others removed it meanwhile.
        FileExistsError: something else has its name.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        # It was there, and gone when Path.mkdir looked whether it is a folder.
        if os.path.lexists(folder) and not folder.is_dir():
            raise
        raise FileNotFoundError(errno.ENOENT, f"{folder} was removed") from error


def _try_again(work: Callable[[], Result], *, path: Path) -> Result:
    """Returns what `work` does, which is done anew when others remove what it has found or made."""
    for _ in range(_MOST_TRIALS):
        with suppress(FileNotFoundError):
            return work()
    raise FileNotFoundError(errno.ENOENT, f"{path} is removed again and again")


def _link(staging: Path, path: Path) -> bool:
    try:
        os.link(staging, path)
    except FileExistsError as error:
        # What is no file would never be found, and be written again and again.
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise OSError(errno.EEXIST, "something that is no file has its name, and has to be removed") from error
        return False
    return True


def _touch(path: Path) -> None:
    def touch() -> None:
        with suppress(FileExistsError):
            os.close(_open_new(path))
        os.utime(path)

    _try_again(touch, path=path)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _try_lock(lock: int, mode: int) -> bool:
    """Returns whether the lock could be had. Where the file system has no locks, it never can."""
    try:
        fcntl.flock(lock, mode)
    except OSError:
        return False
    return True


def _share(lock: int, *, path: Path) -> None:
    """Says by the lock, as long as this process lives, that somebody uses the store."""
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        _logger.warning(
            "waiting for whoever has locked %s: another service that starts, or a program that has no business there",
            path,
        )
        _try_lock(lock, fcntl.LOCK_SH)
    except OSError:
        # The file system has no locks.
        return


def _sweep(root: Path, *, written_before: float) -> None:
    for path in _staging_files(root):
        # Another service may be sweeping at this moment.
        with suppress(FileNotFoundError):
            if path.stat().st_mtime < written_before:
                path.unlink()
                _logger.info("removed %s, which a service that was killed had not finished", path)


def _end_sessions(root: Path) -> None:
    """Removes the leases of keys whose gateways are gone, so that the next one does not wait until they expire."""
    for area in (KEY_LEASES, SESSIONS):
        with suppress(FileNotFoundError):
            shutil.rmtree(root / area)


def _staging_files(root: Path) -> Iterator[Path]:
    for area in _WRITTEN_AREAS:
        for folder, _, names in os.walk(root / area):
            yield from (Path(folder, name) for name in names if _STAGING_NAME.fullmatch(name))
