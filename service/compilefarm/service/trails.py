"""What readers of cache entries ask for after what: pods with one program ask for the same entries, in the same order.
A wrong guess costs bytes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from compilefarm.v1.cache_service_pb2 import TorchCache

# Entries and readers that are remembered.
_MOST_REMEMBERED = 10_000
# Entries that are sent ahead in one answer, and names that are looked at for them.
_MOST_AHEAD = 128
_MOST_FOLLOWED = 2 * _MOST_AHEAD
K = TypeVar("K")
V = TypeVar("V")


class EntryName(NamedTuple):
    """An entry, as a reader asks for it. A tuple: a lookup hashes the names of all that come ahead again and again, and
    Python takes several times as long for a dataclass.

    Attributes:
        cache: of torch.
        key: its name there.
        namespaces: which the reader may see. Readers of other namespaces have trails of their own.
    """

    cache: TorchCache.ValueType
    key: str
    namespaces: tuple[str, ...]


class Trails:
    """For each entry the one that was asked for after it, by whoever did so last. What was not there when it was asked
    for counts as well: who misses an entry compiles, and writes it.
    """

    def __init__(self) -> None:
        self._next: OrderedDict[EntryName, EntryName] = OrderedDict()
        # Of those that are known to be there.
        self._sizes: OrderedDict[EntryName, int] = OrderedDict()
        self._last: OrderedDict[str, EntryName] = OrderedDict()

    def note(self, name: EntryName, *, reader: str) -> None:
        """Notes that a reader has asked for an entry.

        Args:
            name: of the entry.
            reader: a name for the reader.
        """
        previous = self._last.get(reader)
        if previous is not None and previous != name:
            _put(self._next, previous, name)
        self.note_sent(name, reader=reader)

    def note_sent(self, name: EntryName, *, reader: str) -> None:
        """Notes the last entry that a reader has, which it did not ask for: what it asks for next comes after that."""
        _put(self._last, reader, name)

    def note_stored(self, name: EntryName, *, size_bytes: int) -> None:
        """Notes that an entry is there, and its size."""
        _put(self._sizes, name, size_bytes)

    def after(self, name: EntryName, *, room_bytes: int) -> Sequence[EntryName]:
        """Returns what was asked for after an entry and is there, as far as it fits into so many bytes."""
        found: list[EntryName] = []
        seen = {name}
        while len(found) < _MOST_AHEAD and len(seen) <= _MOST_FOLLOWED:
            following = self._next.get(name)
            if following is None or following in seen:
                break
            name = following
            seen.add(name)
            size_bytes = self._sizes.get(name)
            if size_bytes is not None:
                room_bytes -= size_bytes
                if room_bytes < 0:
                    break
                found.append(name)
        return found


def _put(remembered: OrderedDict[K, V], key: K, value: V) -> None:
    remembered[key] = value
    remembered.move_to_end(key)
    if len(remembered) > _MOST_REMEMBERED:
        remembered.popitem(last=False)
