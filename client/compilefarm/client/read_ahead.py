"""Entries of torch's caches that the farm sends before they are asked for: torch asks for one after the other, waits
for each, and pods with one program ask in the same order.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
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


class _Answer:
    """What the last answer holds beyond what was asked for.

    Args:
        found: what came.
        until: time at which that is too old.
    """

    def __init__(self, found: Iterable[FoundEntry], *, until: float) -> None:
        self.until = until
        self._entries = {(each.entry.cache, each.entry.key): each for each in found}
        self._received = len(self._entries)

    def judge(self) -> float:
        """Returns how many times as many bytes the next answer is to hold: fewer where this one was of no use, which is
        said once.
        """
        if not self._received:
            return 1
        is_useful, self._received = len(self._entries) < self._received, 0
        return 2 if is_useful else 1 / 4

    def take(self, name: _Name) -> FoundEntry | None:
        """Takes an entry if it came."""
        return self._entries.pop(name, None)

    def leave_out(self, name: _Name) -> None:
        """Has an entry count as none: it is about to be written."""
        if self._entries.pop(name, None) is not None:
            self._received -= 1


@dataclass(slots=True)
class _ProcessState:
    lock: threading.Lock = field(default_factory=threading.Lock)
    answer: _Answer | None = None
    ahead_bytes: int = _MOST_BYTES


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
        # By process id: the lock of a parent may be held by a thread that its child does not have.
        self._states: dict[int, _ProcessState] = {}

    def read(self, cache: TorchCache.ValueType, key: str) -> bytes:
        """Returns the bytes of an entry.

        Raises:
            As `CacheCalls.read`.
        """
        name = cache, sendable_key(key)
        state = self._state()
        with state.lock:
            found = self._take(state, name)
        return self._calls.content_of(found or self._ask(state, name), *name)

    def forget(self, cache: TorchCache.ValueType, key: str) -> None:
        """Forgets an entry, which is about to be written."""
        state = self._state()
        with state.lock:
            if state.answer is not None:
                state.answer.leave_out((cache, sendable_key(key)))

    def _state(self) -> _ProcessState:
        return self._states.setdefault(os.getpid(), _ProcessState())

    def _take(self, state: _ProcessState, name: _Name) -> FoundEntry | None:
        if state.answer is None:
            return None
        if self._clock.now() < state.answer.until:
            return state.answer.take(name)
        self._judge(state)
        state.answer = None
        return None

    def _ask(self, state: _ProcessState, name: _Name) -> FoundEntry:
        with state.lock:
            self._judge(state)
        until = self._clock.now() + _KEPT_SECONDS
        found = self._calls.find(*name, ahead_bytes=state.ahead_bytes)
        if not found:
            # The earlier answer is of use still.
            raise NotStored(f"there is no entry {name[1]}")
        first, *ahead = found
        with state.lock:
            state.answer = _Answer(ahead, until=until)
        return first

    def _judge(self, state: _ProcessState) -> None:
        if state.answer is not None:
            state.ahead_bytes = min(max(int(state.ahead_bytes * state.answer.judge()), _LEAST_BYTES), _MOST_BYTES)
