"""Ends calls in which the farm has said nothing for a minute."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

import grpc

from compilefarm.core.errors import Silent

# A farm says how a compile stands every ten seconds (compile_service.proto: Progress), and everything else takes it
# less than that; one whose connection lives and that says nothing for so long hangs.
LONGEST_SILENCE_SECONDS = 60.0
# How long the watcher waits for another call before its thread ends.
_IDLE_SECONDS = 60.0

T = TypeVar("T")


class Cancellable(Protocol):
    """A call that is under way."""

    def cancel(self) -> object: ...


class Silence:
    """The time since the farm last said something in a call, counted from now on."""

    def __init__(self) -> None:
        self._seconds = LONGEST_SILENCE_SECONDS
        self._heard_seconds = time.monotonic()
        self._was_too_long = False

    def note_activity(self) -> None:
        """Starts counting again: the farm has said something."""
        self._heard_seconds = time.monotonic()

    def noting_activity(self, pieces: Iterable[T]) -> Iterator[T]:
        """Yields the same pieces, and starts counting again at each."""
        for piece in pieces:
            self.note_activity()
            yield piece

    @contextmanager
    def watching(self, call: Cancellable) -> Iterator[None]:
        """Ends a call if the farm is silent for too long, and when the context ends.

        Raises:
            Silent: the farm was silent for too long.
        """
        watcher = _watcher()
        watcher.add(self, call)
        try:
            yield
        except (grpc.RpcError, grpc.FutureCancelledError):
            if self._was_too_long:
                raise Silent(f"the farm has said nothing for {self._seconds:g} s: check its log") from None
            raise
        finally:
            watcher.remove(self)
            call.cancel()

    def left_seconds(self) -> float:
        """Returns the seconds until the silence is too long."""
        return self._heard_seconds + self._seconds - time.monotonic()

    def end(self, call: Cancellable) -> None:
        """Ends the call, since the silence was too long."""
        self._was_too_long = True
        call.cancel()


class _Watcher:
    """Watches all calls of a process in one thread, which ends when there have been none for a while."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._calls: dict[Silence, Cancellable] = {}
        self._is_running = False

    def add(self, silence: Silence, call: Cancellable) -> None:
        with self._changed:
            self._calls[silence] = call
            self._changed.notify()
            if not self._is_running:
                self._is_running = True
                # A process that ends does not wait for it.
                threading.Thread(target=self._watch, name="silence of the farm", daemon=True).start()

    def remove(self, silence: Silence) -> None:
        with self._changed:
            self._calls.pop(silence, None)

    def _watch(self) -> None:
        while (due := self._wait()) is not None:
            for silence, call in due:
                silence.end(call)

    def _wait(self) -> list[tuple[Silence, Cancellable]] | None:
        """Waits until calls have been silent for too long, and returns them, or None after a while without any call."""
        with self._changed:
            while True:
                due = [(silence, call) for silence, call in self._calls.items() if silence.left_seconds() <= 0]
                if due:
                    for silence, _ in due:
                        del self._calls[silence]
                    return due
                left = min((silence.left_seconds() for silence in self._calls), default=_IDLE_SECONDS)
                if not self._changed.wait(max(left, 0.0)) and not self._calls:
                    self._is_running = False
                    return None


# By process id: threads of a parent process are not there in its child.
_watchers: dict[int, _Watcher] = {}


def _watcher() -> _Watcher:
    return _watchers.setdefault(os.getpid(), _Watcher())
