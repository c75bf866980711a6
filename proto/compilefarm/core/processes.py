"""Watches which processes this one starts, by Python's audit events: pods and verifications start none."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

# Every way in which Python starts a process (https://docs.python.org/3/library/audit_events.html). It audits no
# _posixsubprocess.fork_exec, by which multiprocessing alone starts one besides subprocess.
PROCESS_EVENTS = frozenset(
    {
        "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "pty.spawn", "subprocess.Popen",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A process that this one started.

    Attributes:
        event: by its name among the audit events.
        program: what was to be run; empty where it was this program again, as in a fork.
        command: the program with what it was told, as far as the event says.
    """

    event: str
    program: str
    command: str

    def __str__(self) -> str:
        return self.command or self.event


def watch_processes(*, further: Iterable[str] = ()) -> list[Start]:
    """A list that grows with all that this process starts from now on. There is no way to end that.

    Args:
        further: names of other audit events to be listed, such as "socket.connect".
    """
    watched, started = PROCESS_EVENTS | frozenset(further), list[Start]()

    def listen(event: str, arguments: tuple[Any, ...]) -> None:
        # subprocess has told what it is about to start when it starts it by posix_spawn: most programs since 3.13.
        is_told = event == "os.posix_spawn" and sys._getframe(1).f_globals.get("__name__") == "subprocess"
        if event in watched and not is_told:
            started.append(_start(event, arguments))

    sys.addaudithook(listen)
    return started


def _start(event: str, arguments: tuple[Any, ...]) -> Start:
    words = arguments[1] if event == "subprocess.Popen" else arguments[:1]
    return Start(event=event, program=_text(next(iter(arguments), "")), command=" ".join(map(_text, words)))


def _text(value: object) -> str:
    return os.fsdecode(value) if isinstance(value, bytes) else str(value)
