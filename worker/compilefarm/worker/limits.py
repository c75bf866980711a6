"""Limits for work that a request can make as long and as large as it likes."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Never

import torch

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


def is_out_of_memory(error: Exception) -> bool:
    """Whether host or device had no memory left."""
    # What torch raises on the host is a plain RuntimeError (c10/core/impl/alloc_cpu.cpp).
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def limit_memory(further_bytes: int) -> None:
    """Has this process fail at an allocation that goes beyond so much more memory than it has now.

    Processes that it starts from now on have the same limit. What counts is private and writable (RLIMIT_DATA,
    getrlimit(2)): not files that are mapped, and not the addresses that CUDA reserves, which are many times the memory
    of any machine.
    """
    status = Path("/proc/self/status").read_text()
    now_bytes = 1024 * int(status.partition("VmData:")[2].split()[0])
    resource.setrlimit(resource.RLIMIT_DATA, (now_bytes + further_bytes, now_bytes + further_bytes))
