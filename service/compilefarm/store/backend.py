"""Objects by path: what the store needs of a disk or an object storage service, and nothing more.

Behaviours that have nothing to do with artifacts are wrappers around this interface (`local`, `counting`).
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from compilefarm.core.errors import StoreUnavailable

# What is read into memory at once: manifests, requests, small blobs. Nothing of ours that is read so is larger.
LARGEST_IN_MEMORY_BYTES = 32 * 1024 * 1024
# Artifacts and cache entries have a gigabyte at most, and a little beside.
LARGEST_OBJECT_BYTES = 2 * 1024 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    """An object in a listing.

    Attributes:
        path: where it lies.
        size_bytes: its size.
        modified_seconds: when it was written or touched last, in seconds since 1970, by the clock of the medium.
        tag: another one when it was written anew.
    """

    path: str
    size_bytes: int
    modified_seconds: float
    tag: str


class Backend(Protocol):
    """Objects by path. Every method raises StoreUnavailable if the medium fails.

    What lies there need not be ours: no method believes a size, and what is no object (a folder, a pipe, a device) is
    none.
    """

    @property
    def location(self) -> str:
        """The location, for people, without credentials."""

    async def find(self, path: str) -> bytes | None:
        """Returns the content of an object; None if there is none. Of one of more than LARGEST_IN_MEMORY_BYTES it is so
        much, which has another digest.
        """

    async def find_end(self, path: str, *, size_bytes: int) -> bytes | None:
        """Returns the last bytes of an object, at most so many; None if there is none."""

    async def find_object(self, path: str) -> StoredObject | None:
        """Returns path, size and time of an object; None if there is none."""

    async def create(self, path: str, *, content: bytes) -> bool:
        """Writes a new object, whole or not at all. Returns False, and writes nothing, if there is one already.

        Either way an object is there when this returns, and a power failure does not take it away again.
        """

    async def open(self, path: str) -> IO[bytes] | None:
        """Opens an object for reading; None if there is none. The caller closes it, and reads no more than
        LARGEST_OBJECT_BYTES of it.
        """

    async def create_from(self, path: str, *, file: Path) -> bool:
        """Like `create`, with the content of a file in the folder `staging`, which is left there."""

    @property
    def staging(self) -> Path:
        """A folder of this machine for what is on its way in. It may have to be made."""

    async def settle(self, path: str) -> None:
        """Makes sure that a power failure does not take away an object that is there, whoever has written it."""

    async def touch(self, path: str) -> None:
        """Writes an empty object or, where it is there already, renews its time."""

    async def move(self, path: str, *, target: str) -> bool:
        """Moves an object, over whatever is at the target. False if there is none."""

    async def delete(self, path: str) -> None:
        """Removes an object; it is no error if there is none."""

    def objects(self, folder: str) -> AsyncIterator[StoredObject]:
        """All objects at any depth below a folder, in no particular order."""

    async def folders(self, folder: str, *, beginning: str = "") -> list[str]:
        """The names of the folders directly below a folder, sorted; those that begin so."""


def staging_of_user() -> Path:
    """The folder `staging` of backends that are no folder of this machine, one for each of its users.

    Its name can be guessed by all who may write to the place for temporary files. So it has to be this user's alone:
    others would read what is on its way, or put something else in its place after it was checked.

    Raises:
        StoreUnavailable: somebody else has made it, or it cannot be made.
    """
    folder = Path(tempfile.gettempdir(), f"compilefarm-{os.getuid()}")
    try:
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise StoreUnavailable(
                f"{folder} is no folder of this user, and nothing is written there: have whoever made it remove it, or "
                "name another place for temporary files with TMPDIR"
            )
        if stat.S_IMODE(found.st_mode) & ~stat.S_IRWXU:
            # An earlier release has made it.
            folder.chmod(0o700)
    except OSError as error:
        raise StoreUnavailable(
            f"{folder} cannot be used for what is on its way ({error.strerror}): make room, or name another "
            "place for temporary files with TMPDIR"
        ) from error
    return folder


async def temporary_copy(write: Callable[[IO[bytes]], Awaitable[bool]]) -> IO[bytes] | None:
    """Returns a file without a name that holds an object, at its beginning; None if there is no object.

    Args:
        write: writes the object to a file; False if there is none.
    """
    file = tempfile.TemporaryFile()  # noqa: SIM115 - it is handed over
    try:
        if await write(file):
            file.seek(0)
            return file
    except BaseException:
        file.close()
        raise
    file.close()
    return None


class WrappingBackend(Backend):
    """Passes everything on to another backend. Wrappers override what they change."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    @property
    def location(self) -> str:
        return self._backend.location

    async def find(self, path: str) -> bytes | None:
        return await self._backend.find(path)

    async def find_end(self, path: str, *, size_bytes: int) -> bytes | None:
        return await self._backend.find_end(path, size_bytes=size_bytes)

    async def find_object(self, path: str) -> StoredObject | None:
        return await self._backend.find_object(path)

    async def create(self, path: str, *, content: bytes) -> bool:
        return await self._backend.create(path, content=content)

    async def open(self, path: str) -> IO[bytes] | None:
        return await self._backend.open(path)

    async def create_from(self, path: str, *, file: Path) -> bool:
        return await self._backend.create_from(path, file=file)

    @property
    def staging(self) -> Path:
        return self._backend.staging

    async def settle(self, path: str) -> None:
        await self._backend.settle(path)

    async def touch(self, path: str) -> None:
        await self._backend.touch(path)

    async def move(self, path: str, *, target: str) -> bool:
        return await self._backend.move(path, target=target)

    async def delete(self, path: str) -> None:
        await self._backend.delete(path)

    def objects(self, folder: str) -> AsyncIterator[StoredObject]:
        return self._backend.objects(folder)

    async def folders(self, folder: str, *, beginning: str = "") -> list[str]:
        return await self._backend.folders(folder, beginning=beginning)
