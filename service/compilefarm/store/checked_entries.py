"""Entries that are known to match their digest, and the bytes of small ones, which are asked for while torch compiles.

A file is known by what it is, not by where it lies: what another service writes in its place is another file.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from compilefarm.core.digests import digest_of
from compilefarm.store.entry_records import read_description
from compilefarm.store.records import DamagedRecord
from compilefarm.v1.cache_service_pb2 import CacheEntry, FindEntryResponse

# Entries that are remembered, and what they take in memory.
_MOST_ENTRIES = 10_000
_MOST_BYTES = 64 * 1024 * 1024
# cache_service.proto: FoundEntry.content.
_LARGEST_IN_MEMORY_BYTES = 1024 * 1024
Identity = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedEntry:
    """An entry that matches its digest.

    Attributes:
        entry: its description.
        content: its bytes; None if they are many.
        answer: a FindEntryResponse with it alone, serialized: those of several entries are joined.
    """

    entry: CacheEntry
    content: bytes | None
    answer: bytes

    @property
    def size_bytes(self) -> int:
        """What it takes in memory."""
        return len(self.answer) + len(self.content or b"")


def check_entry_file(file: IO[bytes]) -> CheckedEntry:
    """Reads an entry and compares its bytes with its description.

    Raises:
        DamagedRecord: they are others, or there is no description.
    """
    entry = read_description(file)
    if entry.size_bytes > _LARGEST_IN_MEMORY_BYTES:
        return CheckedEntry(entry=entry, content=None, answer=answer_of(entry, None))
    content = os.pread(file.fileno(), entry.size_bytes, 0)
    if digest_of(content) != entry.digest:
        raise DamagedRecord("its bytes do not match its digest")
    return CheckedEntry(entry=entry, content=content, answer=answer_of(entry, content))


def read_written(path: Path, entry: CacheEntry) -> CheckedEntry | None:
    """Returns an entry as it was just written, whose bytes matched its digest when they came; None if they are many.

    Args:
        path: of the file.
        entry: its description.
    """
    if entry.size_bytes > _LARGEST_IN_MEMORY_BYTES:
        return None
    with path.open("rb") as file:
        content = file.read(entry.size_bytes)
    kept = CacheEntry()
    kept.CopyFrom(entry)
    return CheckedEntry(entry=kept, content=content, answer=answer_of(entry, content))


def answer_of(entry: CacheEntry, content: bytes | None) -> bytes:
    """Returns a FindEntryResponse with an entry, serialized, which does not tell who wrote that.

    Args:
        entry: its description.
        content: its bytes; None if they are left out.
    """
    answer = FindEntryResponse()
    # Not handed over as arguments: each would be copied once more.
    found = answer.entries.add()
    found.entry.CopyFrom(entry)
    found.entry.ClearField("writer")
    if content is not None:
        found.content = content
    return answer.SerializeToString()


class CheckedEntries:
    """Remembers entries, and forgets those that were asked for least recently."""

    def __init__(self) -> None:
        self._known: OrderedDict[Identity, CheckedEntry] = OrderedDict()
        self._size_bytes = 0

    def find(self, identity: Identity) -> CheckedEntry | None:
        """Returns the entry that a file is known to be; None if that is not known."""
        if identity in self._known:
            self._known.move_to_end(identity)
        return self._known.get(identity)

    def add(self, identity: Identity, checked: CheckedEntry) -> None:
        """Remembers an entry."""
        self._forget(identity)
        self._known[identity] = checked
        self._size_bytes += checked.size_bytes
        while len(self._known) > _MOST_ENTRIES or self._size_bytes > _MOST_BYTES:
            self._forget(next(iter(self._known)))

    def _forget(self, identity: Identity) -> None:
        forgotten = self._known.pop(identity, None)
        if forgotten is not None:
            self._size_bytes -= forgotten.size_bytes
