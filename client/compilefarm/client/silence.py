"""A watch over calls in which something has to be heard now and then."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Silence:
    """Ends a call in which nothing is heard for too long.

    Attributes:
        was_too_long: whether it did.

    Args:
        seconds: how long that is.
        end: ends the call; called from a thread of its own.
    """

    def __init__(self, seconds: float, *, end: Callable[[], object]) -> None:
        self._seconds = seconds
        self._end = end
        self.was_too_long = False
        self._timer = self._start()

    def break_off(self) -> None:
        """Notes that something was heard."""
        self.close()
        self._timer = self._start()

    def close(self) -> None:
        """Watches no longer."""
        self._timer.cancel()

    def _start(self) -> threading.Timer:
        timer = threading.Timer(self._seconds, self._note)
        # A process that ends does not wait for it.
        timer.daemon = True
        timer.start()
        return timer

    def _note(self) -> None:
        self.was_too_long = True
        self._end()
