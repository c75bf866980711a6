"""A limit for work that a request can make as long as it likes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Never

from compilefarm.core.errors import InvalidRequest


class _TookTooLong(BaseException):
    """No Exception, so that nothing takes it for an answer of torch."""


@contextmanager
def time_limit(seconds: float, *, doing: str) -> Iterator[None]:
    """Ends what happens inside after a while; in the main thread, for work that returns to Python now and then.

    Raises:
        InvalidRequest: it took longer.
    """

    def end(_: int, __: FrameType | None) -> Never:
        raise _TookTooLong

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except _TookTooLong:
        raise InvalidRequest(f"{doing} takes more than {seconds:.0f} s") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
