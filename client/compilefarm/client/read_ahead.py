"""Entries of torch's caches that the farm sends before they are asked for: torch asks for one after the other, waits
for each, and pods with one program ask in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from compilefarm.client.cache_calls import CacheCalls
from compilefarm.client.clock import Clock
from compilefarm.core.cache_entries import sendable_key
from compilefarm.core.errors import NotStored
from compilefarm.v1.cache_service_pb2 import FoundEntry, TorchCache

_MOST_BYTES = 2 * 1024 * 1024
_LEAST_BYTES = 64 * 1024
# Others may write an entry anew meanwhile.
_KEPT_SECONDS = 30.0
_Name = tuple[TorchCache.ValueType, str]


@dataclass(slots=True, kw_only=True)
class _Answer:
    """What the last answer held beyond what was asked for.

    Attributes:
        entries: that were not taken yet.
        until: time at which they are too old.
        sent: how many there were.
    """

    entries: dict[_Name, FoundEntry] = field(default_factory=dict)
    until: float = 0.0
    sent: int = 0


class ReadAhead:
    """Reads entries, and keeps what came ahead in the last answer. Threads share it, and forked processes may go on
    using it.

    Args:
        calls: for entries.
        clock: time.
    """

    def __init__(self, calls: CacheCalls, *, clock: Clock) -> None:
        self._calls = calls
        self._clock = clock
        self._answer = _Answer()
        self._ahead_bytes = _MOST_BYTES

    def read(self, cache: TorchCache.ValueType, key: str) -> bytes:
        """Returns the bytes of an entry.

        Raises:
            As `CacheCalls.read`.
        """
        name = cache, sendable_key(key)
        found = self._take(name) or self._ask(name)
        return self._calls.content_of(found, *name)

    def forget(self, cache: TorchCache.ValueType, key: str) -> None:
        """Forgets an entry, which is about to be written."""
        self._answer.entries.pop((cache, sendable_key(key)), None)

    def _take(self, name: _Name) -> FoundEntry | None:
        found = self._answer.entries.pop(name, None)
        return found if self._clock.now() < self._answer.until else None

    def _ask(self, name: _Name) -> FoundEntry:
        self._adapt()
        cache, key = name
        found = self._calls.find(cache, key, ahead_bytes=self._ahead_bytes)
        if not found:
            raise NotStored(f"there is no entry {key}")
        first, *ahead = found
        entries = {(each.entry.cache, each.entry.key): each for each in ahead}
        self._answer = _Answer(entries=entries, until=self._clock.now() + _KEPT_SECONDS, sent=len(ahead))
        return first

    def _adapt(self) -> None:
        """Takes fewer bytes where the last answer was of no use, and more where it was."""
        answer = self._answer
        if answer.sent:
            is_useful = len(answer.entries) < answer.sent
            wanted_bytes = self._ahead_bytes * 2 if is_useful else self._ahead_bytes // 4
            self._ahead_bytes = min(max(wanted_bytes, _LEAST_BYTES), _MOST_BYTES)
