"""The format of stored cache entries: their bytes, then their description, so that both are one object.

An entry ends with its description (CacheEntry, serialized), the length of that in four bytes, and a line of text.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from typing import IO

from google.protobuf.message import DecodeError

from compilefarm.core.cache_entries import LONGEST_DESCRIPTION_BYTES
from compilefarm.core.digests import digest_of
from compilefarm.store.backend import LARGEST_OBJECT_BYTES
from compilefarm.store.files import digest_of_file
from compilefarm.store.records import DamagedRecord
from compilefarm.v1.cache_service_pb2 import CacheEntry

_TITLE = b"compilefarm cache entry 1\n"
_LENGTH = struct.Struct(">I")
_END_BYTES = _LENGTH.size + len(_TITLE)
# In which a description lies, with what the service adds.
LONGEST_END_BYTES = 2 * LONGEST_DESCRIPTION_BYTES
ENTRIES = "entries"
# What an entry counts at least: without bytes it still has two folders, two inodes, and a place in memory.
SMALLEST_ENTRY_BYTES = 16 * 1024
# Of entries that belong to no namespace in particular.
_NO_NAMESPACE = "-"


def entry_path(cache: str, key: str, *, namespace: str) -> str:
    """Returns where an entry lies: entries/<cache>/<sha256 of its key>/<namespace>."""
    return f"{ENTRIES}/{cache}/{digest_of(key.encode())}/{written_namespace(namespace)}"


def written_namespace(namespace: str) -> str:
    """Returns a namespace as paths write it."""
    return namespace or _NO_NAMESPACE


def namespace_of_entry(path: str) -> str:
    """Returns the namespace of the entry at a path, as the path writes it."""
    return path.rpartition("/")[2]


def is_in_namespaces(path: str, namespaces: Iterable[str]) -> bool:
    """Returns whether the entry at a path is of one of these namespaces."""
    return namespace_of_entry(path) in {namespace or _NO_NAMESPACE for namespace in namespaces}


def trailer_of(entry: CacheEntry) -> bytes:
    """Returns what follows the bytes of an entry."""
    description = entry.SerializeToString(deterministic=True)
    return description + _LENGTH.pack(len(description)) + _TITLE


def find_identity(file: IO[bytes]) -> tuple[int, ...] | None:
    """Returns numbers that change when the file is another one, or is written to; None if there are none.

    A file without a name is a copy of what a bucket has, and is gone when it is closed: the next one may have its
    number, and, where a file system tells times by the ticks of its kernel, which are milliseconds, its time too.
    """
    status = os.fstat(file.fileno())
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns) if status.st_nlink else None


def read_description(file: IO[bytes]) -> CacheEntry:
    """Reads the description of an entry, and compares the bytes before it with that.

    Raises:
        DamagedRecord: they are others, or there is no description.
    """
    # What was written to the file may still be in its buffer until it is asked for its end.
    size_bytes = file.seek(0, os.SEEK_END)
    end = os.pread(file.fileno(), LONGEST_END_BYTES, max(size_bytes - LONGEST_END_BYTES, 0))
    entry, trailer_bytes = parse_end(end)
    start = size_bytes - trailer_bytes
    # Before it is read: whoever writes the storage may say any size, and leave files of terabytes there.
    is_sized = start == entry.size_bytes <= LARGEST_OBJECT_BYTES
    if not is_sized or digest_of_file(file, limit_bytes=start) != (entry.digest, start):
        raise DamagedRecord("its bytes do not match its digest")
    return entry


def parse_end(end: bytes) -> tuple[CacheEntry, int]:
    """Returns the description of an entry, and how many bytes it takes there.

    Args:
        end: the last LONGEST_END_BYTES of the entry, or all of it.

    Raises:
        DamagedRecord: there is none.
    """
    if len(end) < _END_BYTES or not end.endswith(_TITLE):
        raise DamagedRecord("its end is missing")
    (length,) = _LENGTH.unpack(end[-_END_BYTES : -len(_TITLE)])
    trailer_bytes = _END_BYTES + length
    if trailer_bytes > len(end):
        raise DamagedRecord("its beginning is missing")
    return _parse(end[len(end) - trailer_bytes : -_END_BYTES]), trailer_bytes


def _parse(content: bytes) -> CacheEntry:
    try:
        return CacheEntry.FromString(content)
    except DecodeError as error:
        raise DamagedRecord(f"its description was written wrongly: {error}") from error
