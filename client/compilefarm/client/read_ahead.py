"""Entries of torch's caches that the farm sends before they are asked for: torch asks for one after the other, waits
for each, and pods with one program ask in the same order.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Generator
from dataclasses import dataclass, field

from compilefarm.client.cache_calls import CacheCalls
from compilefarm.client.clock import Clock
from compilefarm.core.cache_entries import sendable_key
from compilefarm.core.errors import FarmError, NotStored, Silent
from compilefarm.v1.cache_service_pb2 import FoundEntry, TorchCache

_MOST_BYTES = 2 * 1024 * 1024
_LEAST_BYTES = 64 * 1024
# Others may write an entry anew meanwhile.
_KEPT_SECONDS = 30.0
_Name = tuple[TorchCache.ValueType, str]
_readers: weakref.WeakSet[ReadAhead] = weakref.WeakSet()


class _Answer:
    """What the last answer holds beyond what was asked for. It is read when something else is asked for: more is on its
    way while torch uses what came first.

    Args:
        coming: what it holds.
        until: time at which that is too old.
    """

    def __init__(self, coming: Generator[FoundEntry], *, until: float) -> None:
        self.until = until
        self._coming = coming
        # What came and was not taken.
        self._entries: dict[_Name, FoundEntry] = {}
        self._written: set[_Name] = set()
        self._received = 0

    def judge(self) -> float:
        """Returns how many times as many bytes the next answer is to hold: fewer where this one was of no use, which is
        said once.
        """
        if not self._received:
            return 1
        is_useful, self._received = len(self._entries) < self._received, 0
        return 2 if is_useful else 1 / 4

    def take(self, name: _Name) -> FoundEntry | None:
        """Takes an entry if it came, or comes.

        Raises:
            Silent: the farm has not gone on in time.
        """
        if name in self._written:
            return None
        found = self._entries.pop(name, None)
        while found is None and (each := self._receive()) is not None:
            self._received += 1
            if (each.entry.cache, each.entry.key) == name:
                return each
            self._entries[each.entry.cache, each.entry.key] = each
        return found

    def leave_out(self, name: _Name) -> None:
        """Has an entry count as none: it is about to be written."""
        self._written.add(name)

    def close(self) -> None:
        """Ends what is on its way. What came stays."""
        self._coming.close()

    def _receive(self) -> FoundEntry | None:
        try:
            return next(self._coming, None)
        except Silent:
            raise
        except FarmError:
            # It ended with the connection. Whoever asks anew is told if nobody answers any more.
            return None


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
        timeout_seconds: for an entry.
    """

    def __init__(self, calls: CacheCalls, *, clock: Clock, timeout_seconds: float) -> None:
        self._calls = calls
        self._clock = clock
        # A call whose time is over gives nothing more.
        self._kept_seconds = min(_KEPT_SECONDS, timeout_seconds)
        # By process id: a child does not touch the call of its parent (connection.py).
        self._states: dict[int, _ProcessState] = {}
        _readers.add(self)

    def read(self, cache: TorchCache.ValueType, key: str) -> bytes:
        """Returns the bytes of an entry.

        Raises:
            As `CacheCalls.read`.
        """
        name = cache, sendable_key(key)
        state = self._state()
        # Nobody waits for another thread that waits for the farm.
        if not state.lock.acquire(blocking=False):
            return self._calls.content_of(self._ask_alone(name), *name)
        try:
            found = self._take(state, name) or self._ask(state, name)
        finally:
            state.lock.release()
        return self._calls.content_of(found, *name)

    def forget(self, cache: TorchCache.ValueType, key: str) -> None:
        """Forgets an entry, which is about to be written."""
        answer = self._state().answer
        if answer is not None:
            answer.leave_out((cache, sendable_key(key)))

    def end_call(self) -> None:
        """Ends what is on its way, unless a thread waits for it at this moment."""
        state = self._state()
        if state.lock.acquire(blocking=False):
            try:
                if state.answer is not None:
                    state.answer.close()
            finally:
                state.lock.release()

    def _state(self) -> _ProcessState:
        return self._states.setdefault(os.getpid(), _ProcessState())

    def _take(self, state: _ProcessState, name: _Name) -> FoundEntry | None:
        if state.answer is None:
            return None
        if self._clock.now() < state.answer.until:
            return state.answer.take(name)
        self._judge(state)
        self._end(state)
        return None

    def _ask(self, state: _ProcessState, name: _Name) -> FoundEntry:
        self._judge(state)
        until = self._clock.now() + self._kept_seconds
        coming = self._calls.find(*name, ahead_bytes=state.ahead_bytes)
        found = _first(coming, name)
        _end_calls_before_forks()
        # After a miss the earlier one is of use still.
        self._end(state)
        state.answer = _Answer(coming, until=until)
        return found

    def _ask_alone(self, name: _Name) -> FoundEntry:
        coming = self._calls.find(*name, ahead_bytes=0)
        try:
            return _first(coming, name)
        finally:
            coming.close()

    def _judge(self, state: _ProcessState) -> None:
        if state.answer is not None:
            state.ahead_bytes = min(max(int(state.ahead_bytes * state.answer.judge()), _LEAST_BYTES), _MOST_BYTES)

    def _end(self, state: _ProcessState) -> None:
        if state.answer is not None:
            state.answer.close()
            state.answer = None


def _first(found: Generator[FoundEntry], name: _Name) -> FoundEntry:
    first = next(found, None)
    if first is None:
        raise NotStored(f"there is no entry {name[1]}")
    return first


@functools.cache
def _end_calls_before_forks() -> None:
    """gRPC waits a second for calls before a fork. What it does for that is registered at the first call, and what was
    registered later runs earlier.
    """
    os.register_at_fork(before=_end_calls)


def _end_calls() -> None:
    for reader in list(_readers):
        reader.end_call()
