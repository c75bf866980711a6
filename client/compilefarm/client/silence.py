"""A watch over calls, in each of which something has to be heard now and then."""

from __future__ import annotations

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

T = TypeVar("T")


class Cancellable(Protocol):
    """A call that is under way."""

    def cancel(self) -> object: ...


class Silence:
    """How long nothing has been heard in a call, counted from now on."""

    def __init__(self) -> None:
        self._seconds = LONGEST_SILENCE_SECONDS
        self._heard_seconds = time.monotonic()
        self._was_too_long = False
        self._over = threading.Event()

    def break_off(self) -> None:
        """Notes that something was heard."""
        self._heard_seconds = time.monotonic()

    def broken_by(self, pieces: Iterable[T]) -> Iterator[T]:
        """The same pieces; each that is taken breaks the silence."""
        for piece in pieces:
            self.break_off()
            yield piece

    @contextmanager
    def watching(self, call: Cancellable) -> Iterator[None]:
        """Ends a call if nothing is heard in it for too long, and when the context ends.

        Raises:
            Silent: nothing was heard for too long.
        """
        # A process that ends does not wait for it.
        threading.Thread(target=self._watch, args=[call], name="silence of the farm", daemon=True).start()
        try:
            yield
        except (grpc.RpcError, grpc.FutureCancelledError):
            if self._was_too_long:
                raise Silent(f"the farm has said nothing for {self._seconds:g} s: check its log") from None
            raise
        finally:
            self._over.set()
            call.cancel()

    def _watch(self, call: Cancellable) -> None:
        while not self._over.wait(self._left()):
            if self._left() <= 0:
                self._was_too_long = True
                call.cancel()
                return

    def _left(self) -> float:
        return self._heard_seconds + self._seconds - time.monotonic()
