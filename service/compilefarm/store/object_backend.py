"""A backend on any store of obstore: local disk, memory, S3 and its like."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import MemoryStore, ObjectStore

from compilefarm.core.errors import StoreUnavailable
from compilefarm.store.backend import (
    LARGEST_IN_MEMORY_BYTES,
    LARGEST_OBJECT_BYTES,
    Backend,
    StoredObject,
    staging_of_user,
    temporary_copy,
)

if TYPE_CHECKING:
    # Exists for type checkers only.
    from obstore import GetResult, ObjectMeta

# Each batch is a turn of the event loop, which is 0.6 ms for so many.
_LISTED_AT_ONCE = 100
# Services say what they like.
_LONGEST_CAUSE = 500
_PIECE_BYTES = 4 * 1024 * 1024


class ObjectBackend(Backend):
    """Adapts a store of obstore, and translates its errors.

    Args:
        store: a store of obstore.
        location: where it is, for people, without credentials.
    """

    def __init__(self, store: ObjectStore, *, location: str) -> None:
        self._store = store
        self._location = location
        # obstore holds Python's lock when it begins to list memory. It then waits for whoever removes an object there,
        # who waits for Python's lock, since the bytes are Python's. One folder at a time is listed without that lock.
        self._lists_by_folder = isinstance(store, MemoryStore)

    @property
    def location(self) -> str:
        return self._location

    async def find(self, path: str) -> bytes | None:
        with self.reporting(f"read {path}"):
            try:
                result = await self._store.get_async(path)
            except FileNotFoundError:
                return None
            if _said_bytes(result) <= LARGEST_IN_MEMORY_BYTES:
                return (await result.bytes_async()).to_bytes()
            # Not at once: obstore takes as much memory as the service says that there will be, or ends the process.
            content = bytearray()
            async for piece in result.stream(min_chunk_size=_PIECE_BYTES):
                content += piece
                if len(content) >= LARGEST_IN_MEMORY_BYTES:
                    break
            return bytes(content[:LARGEST_IN_MEMORY_BYTES])

    async def find_end(self, path: str, *, size_bytes: int) -> bytes | None:
        with self.reporting(f"read {path}"):
            try:
                result = await self._store.get_async(path, options={"range": {"suffix": size_bytes}})
            except FileNotFoundError:
                return None
            start, end = result.range
            if end - start > size_bytes:
                raise OSError(errno.EIO, f"{end - start} bytes come where {size_bytes} were asked for")
            return (await result.bytes_async()).to_bytes()

    async def find_object(self, path: str) -> StoredObject | None:
        with self.reporting(f"look for {path}"):
            try:
                return _stored_object(await self._store.head_async(path), path=path)
            except FileNotFoundError:
                return None

    async def create(self, path: str, *, content: bytes) -> bool:
        with self.reporting(f"write {path}"):
            try:
                await self._store.put_async(path, content, mode="create")
            except AlreadyExistsError:
                return False
            return True

    async def open(self, path: str) -> IO[bytes] | None:
        return await temporary_copy(lambda file: self.copy_to(path, file=file))

    async def copy_to(self, path: str, *, file: IO[bytes]) -> bool:
        """Writes an object to a file, a little more than LARGEST_OBJECT_BYTES of it at most. False if there is none."""
        with self.reporting(f"read {path}"):
            try:
                result = await self._store.get_async(path)
            except FileNotFoundError:
                return False
            size_bytes = 0
            async for piece in result.stream(min_chunk_size=_PIECE_BYTES):
                await asyncio.to_thread(file.write, piece)
                size_bytes += len(piece)
                if size_bytes > LARGEST_OBJECT_BYTES:
                    break
            return True

    async def create_from(self, path: str, *, file: Path) -> bool:
        with self.reporting(f"write {path}"):
            if await self.find_object(path) is not None:
                return False
            # In parts where it is large, which cannot be told to leave alone what is there: it is the same.
            await self._store.put_async(path, file)
            return True

    @property
    def staging(self) -> Path:
        return staging_of_user()

    async def settle(self, path: str) -> None:
        """Does nothing: a service acknowledges what it has, and memory survives no power failure anyway."""

    async def touch(self, path: str) -> None:
        with self.reporting(f"write {path}"):
            await self._store.put_async(path, b"", mode="overwrite")

    async def move(self, path: str, *, target: str) -> bool:
        with self.reporting(f"move {path} to {target}"):
            try:
                await self._store.rename_async(path, target)
            except FileNotFoundError:
                return False
            return True

    async def delete(self, path: str) -> None:
        with self.reporting(f"delete {path}"):
            try:
                await self._store.delete_async(path)
            except FileNotFoundError:
                return

    async def objects(self, folder: str) -> AsyncIterator[StoredObject]:
        if self._lists_by_folder:
            async for stored in self._objects_by_folder(folder):
                yield stored
            return
        first: str | None = None
        with self.reporting(f"list {folder}"):
            async for batch in self._store.list(folder, chunk_size=_LISTED_AT_ONCE):
                for found in batch:
                    _require_below(folder, found["path"])
                    # As of a service that does not know how its listings go on.
                    if found["path"] == first:
                        raise OSError(errno.EIO, f"{first[:100]!r} is listed again")
                    first = first or found["path"]
                    yield _stored_object(found, path=found["path"])

    async def _objects_by_folder(self, folder: str) -> AsyncIterator[StoredObject]:
        with self.reporting(f"list {folder}"):
            listing = await self._store.list_with_delimiter_async(folder)
        for found in listing["objects"]:
            yield _stored_object(found, path=found["path"])
        for inner in listing["common_prefixes"]:
            async for stored in self._objects_by_folder(inner):
                yield stored

    async def folders(self, folder: str, *, beginning: str = "") -> list[str]:
        with self.reporting(f"list {folder}"):
            listing = await self._store.list_with_delimiter_async(folder)
            # In a thread: there may be hundreds of thousands.
            return await asyncio.to_thread(_names_of, listing["common_prefixes"], folder=folder, beginning=beginning)

    @contextmanager
    def reporting(self, action: str) -> Iterator[None]:
        """Inside, what the storage raises is raised as StoreUnavailable, which says what was tried."""
        try:
            yield
        # A time that Python has no form for is a ValueError.
        except (BaseError, OSError, ValueError) as error:
            # obstore adds a dump of its own error objects, which tells a reader nothing new.
            cause = str(error).partition("\n")[0][:_LONGEST_CAUSE]
            raise StoreUnavailable(
                f"the store at {self._location} could not {action}: {cause}; "
                "check that it exists, can be written and has free space"
            ) from error


def _said_bytes(result: GetResult) -> int:
    """How many bytes a service says that there are."""
    start, end = result.range
    return max(result.meta["size"], end - start)


def _names_of(paths: Iterable[str], *, folder: str, beginning: str) -> list[str]:
    names = []
    for path in paths:
        _require_below(folder, path)
        names.append(path.rpartition("/")[2])
    return sorted(name for name in names if name.startswith(beginning))


def _require_below(folder: str, path: str) -> None:
    """Passes if a path lies below a folder. What else is listed would be taken for what was asked for."""
    if not path.startswith(f"{folder}/"):
        raise OSError(errno.EIO, f"{path[:100]!r} is listed, which lies elsewhere")


def _stored_object(found: ObjectMeta, *, path: str) -> StoredObject:
    return StoredObject(
        path=path,
        size_bytes=found["size"],
        modified_seconds=found["last_modified"].timestamp(),
        tag=found["e_tag"] or "",
    )
