"""What readers of cache entries ask for after what: pods with one program ask for the same entries, in the same order.
A wrong guess costs bytes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from compilefarm.v1.cache_service_pb2 import TorchCache

# Entries and readers that are remembered.
_MOST_REMEMBERED = 10_000
# Entries that are sent ahead in one answer.
_MOST_AHEAD = 128
K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryName:
    """An entry, as a reader asks for it.

    Attributes:
        cache: of torch.
        key: its name there.
        namespaces: which the reader may see. Readers of other namespaces have trails of their own.
    """

    cache: TorchCache.ValueType
    key: str
    namespaces: tuple[str, ...]


class Trails:
    """For each entry the one that was asked for after it, by whoever did so last.

    Attributes:
        changes: how often that became another one.
    """

    def __init__(self) -> None:
        self.changes = 0
        self._next: OrderedDict[EntryName, tuple[EntryName, int]] = OrderedDict()
        self._last: OrderedDict[str, EntryName] = OrderedDict()

    def note(self, name: EntryName, *, size_bytes: int, reader: str) -> None:
        """Notes that a reader was given an entry.

        Args:
            name: of the entry.
            size_bytes: its size.
            reader: a name for the reader.
        """
        previous = self._last.get(reader)
        if previous is not None and previous.namespaces == name.namespaces and previous != name:
            self.changes += self._next.get(previous) != (name, size_bytes)
            _put(self._next, previous, (name, size_bytes))
        self.note_sent(name, reader=reader)

    def note_sent(self, name: EntryName, *, reader: str) -> None:
        """Notes the last entry that a reader has, which it did not ask for: what it asks for next comes after that."""
        _put(self._last, reader, name)

    def after(self, name: EntryName, *, room_bytes: int) -> Sequence[EntryName]:
        """Returns what was asked for after an entry, as far as it fits into so many bytes."""
        found: list[EntryName] = []
        seen = {name}
        while len(found) < _MOST_AHEAD and (following := self._next.get(name)) is not None:
            name, size_bytes = following
            room_bytes -= size_bytes
            if name in seen or room_bytes < 0:
                break
            seen.add(name)
            found.append(name)
        return found


def _put(remembered: OrderedDict[K, V], key: K, value: V) -> None:
    remembered[key] = value
    remembered.move_to_end(key)
    if len(remembered) > _MOST_REMEMBERED:
        remembered.popitem(last=False)
