"""Limits of time and memory for the work of a child."""

from __future__ import annotations

import argparse
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Never


class TimeLimitExceeded(Exception):
    """Work took longer than its time limit."""


class _TimeIsUp(BaseException):
    """Ends limited work. Not an Exception, so that no handler in torch catches it."""


@contextmanager
def time_limit(seconds: float, *, doing: str, grace_seconds: float = 10.0) -> Iterator[None]:
    """Ends the work inside once this process has computed for so long; it may wait for a processor as long as it likes.
    For the main thread. Work that does not return to Python, as a loop in C++, ends the process a while later.

    Args:
        seconds: of processor time.
        doing: what, for people.
        grace_seconds: after which this process is ended (SIGPROF).

    Raises:
        TimeLimitExceeded: the work took longer.
    """

    def end(_: int, __: FrameType | None) -> Never:
        raise _TimeIsUp

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    # Nothing handles its signal, so that the kernel ends the process.
    signal.setitimer(signal.ITIMER_PROF, seconds + grace_seconds)
    try:
        yield
    except _TimeIsUp:
        raise TimeLimitExceeded(f"{doing} takes more than {seconds:.0f} s") from None
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGVTALRM, before)


@contextmanager
def memory_limit(further_bytes: int) -> Iterator[None]:
    """Inside, this process may take so much more memory than it has, if it may take as much at all; allocations beyond
    fail.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    allowed = [limit for limit in (soft, _data_bytes() + further_bytes) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(allowed), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options that set the limits of a child."""
    option = parser.add_argument
    option("--memory-limit", type=int, default=None, metavar="BYTES", help="what a task may take")
    option("--file-limit", type=int, default=None, metavar="BYTES", help="what a file may hold")
    option("--process-limit", type=int, default=None, metavar="N", help="processes and threads of this user")
    option("--descriptor-limit", type=int, default=None, metavar="N", help="open files of a process")


def impose(arguments: argparse.Namespace) -> None:
    """Sets the limits that were given, for this process and those that it starts."""
    if arguments.memory_limit is not None:
        limit_memory(arguments.memory_limit)
    if arguments.file_limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (arguments.file_limit, arguments.file_limit))
    if arguments.process_limit is not None:
        # Within a user namespace only what runs in there counts (user_namespaces(7)). The administrator has no limit.
        resource.setrlimit(resource.RLIMIT_NPROC, (arguments.process_limit, arguments.process_limit))
    if arguments.descriptor_limit is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (arguments.descriptor_limit, arguments.descriptor_limit))


def limit_memory(further_bytes: int) -> None:
    """Limits this process to so much more memory than it has now; allocations beyond fail.

    Processes that it starts from now on have the same limit. What counts is private and writable (RLIMIT_DATA,
    getrlimit(2)): not files that are mapped, and not the addresses that CUDA reserves, which are many times the memory
    of any machine.
    """
    limit_bytes = _data_bytes() + further_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))


def _data_bytes() -> int:
    """What counts of this process for RLIMIT_DATA."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmData:")[2].split()[0])
