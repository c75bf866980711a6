"""Notices what a request must never bring about: an import that it names, a program, a written file, a connection, a
hang, memory without bound.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from compilefarm.core.processes import PROCESS_EVENTS

# Modules that nobody imports; requests are made to name them.
DECOYS = ("this", "turtledemo", "idlelib", "lib2to3", "xmlrpc")
SECONDS = 20.0
MEMORY_BYTES = 1 << 30
# As they are audited by Python (https://docs.python.org/3/library/audit_events.html).
_FORBIDDEN_EVENTS = PROCESS_EVENTS | {
    "builtins.input", "ctypes.dlopen", "os.chmod", "os.kill", "os.link", "os.mkdir", "os.putenv", "os.remove",
    "os.rename", "os.rmdir", "os.symlink", "os.truncate", "pickle.find_class", "shutil.copyfile", "shutil.move",
    "shutil.rmtree", "socket.__new__", "socket.bind", "socket.connect", "socket.getaddrinfo", "webbrowser.open",
}  # fmt: skip
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

_is_watching = False


class _Noticed(BaseException):
    """What was noticed. No Exception, so that nothing takes it for an answer of torch."""


@contextmanager
def watched() -> Iterator[None]:
    """Watches what happens inside; in the main thread.

    Raises:
        AssertionError: a request must never bring that about.
        MemoryError, RuntimeError: as Python or torch raise it for more memory than MEMORY_BYTES.
    """
    global _is_watching
    _is_watching = True
    try:
        with _limited_memory(), _limited_time():
            yield
    except _Noticed as noticed:
        raise AssertionError(str(noticed)) from noticed
    finally:
        _is_watching = False
    imported = [name for name in sys.modules if name.partition(".")[0] in DECOYS]
    for name in imported:
        del sys.modules[name]
    assert not imported, f"it imports {', '.join(imported)}"


@contextmanager
def _limited_memory() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm", encoding="ascii") as file:
        now_bytes = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now_bytes + MEMORY_BYTES, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


@contextmanager
def _limited_time() -> Iterator[None]:
    handler = signal.signal(signal.SIGALRM, _raise_too_slow)
    started = time.monotonic()
    # pytest-timeout may have set it, too.
    others_seconds, _ = signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        left_seconds = max(others_seconds - (time.monotonic() - started), 0.1) if others_seconds else 0.0
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, left_seconds)


def _raise_too_slow(*_: object) -> None:
    raise _Noticed(f"it takes more than {SECONDS} s")


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if not _is_watching:
        return
    if event in _FORBIDDEN_EVENTS or (event == "open" and isinstance(args[2], int) and args[2] & _WRITING):
        raise _Noticed(f"{event} {args!r:.300}")


# A hook cannot be taken away again, hence the switch.
sys.addaudithook(_audit)
