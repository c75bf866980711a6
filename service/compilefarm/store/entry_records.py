"""The format of stored cache entries: their bytes, then their description, so that both are one object.

An entry ends with its description (CacheEntry, serialized), the length of that in four bytes, and a line of text.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from typing import IO

from google.protobuf.message import DecodeError

from compilefarm.core.digests import digest_of
from compilefarm.store.files import digest_of_file
from compilefarm.store.records import DamagedRecord
from compilefarm.v1.cache_service_pb2 import CacheEntry

_TITLE = b"compilefarm cache entry 1\n"
_LENGTH = struct.Struct(">I")
_END_BYTES = _LENGTH.size + len(_TITLE)
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


def identity_of(file: IO[bytes]) -> tuple[int, ...]:
    """Returns numbers that change when the file is another one, or is written to."""
    status = os.fstat(file.fileno())
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def read_description(file: IO[bytes], *, is_whole: bool = False) -> CacheEntry:
    """Reads the description of an entry, and compares the bytes before it with that.

    Args:
        file: the entry.
        is_whole: whether the bytes are known to be those that the description says.

    Raises:
        DamagedRecord: they are others, or there is no description.
    """
    # What was written to the file may still be in its buffer until it is asked for its end.
    size_bytes = file.seek(0, os.SEEK_END)
    end = os.pread(file.fileno(), _END_BYTES, max(size_bytes - _END_BYTES, 0))
    if len(end) < _END_BYTES or not end.endswith(_TITLE):
        raise DamagedRecord("its end is missing")
    (length,) = _LENGTH.unpack(end[: _LENGTH.size])
    start = size_bytes - _END_BYTES - length
    if start < 0:
        raise DamagedRecord("its beginning is missing")
    entry = _parse(os.pread(file.fileno(), length, start))
    if not is_whole and digest_of_file(file, limit_bytes=start) != (entry.digest, entry.size_bytes):
        raise DamagedRecord("its bytes do not match its digest")
    return entry


def _parse(content: bytes) -> CacheEntry:
    try:
        return CacheEntry.FromString(content)
    except DecodeError as error:
        raise DamagedRecord(f"its description was written wrongly: {error}") from error
