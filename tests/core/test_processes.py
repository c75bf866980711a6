"""What a process starts is noticed, however it is started."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Callable

import pytest

from compilefarm.core.processes import watch_processes

TRUE = "/bin/true"


def _wait(pid: int) -> None:
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize(
    ("start", "event", "program", "words"),
    [
        (lambda: subprocess.run([TRUE, "a"], check=True), "subprocess.Popen", TRUE, "/bin/true a"),
        # By posix_spawn.
        (lambda: subprocess.run([TRUE], check=True, close_fds=False), "subprocess.Popen", TRUE, TRUE),
        (lambda: os.system(TRUE), "os.system", TRUE, TRUE),
        (lambda: _wait(os.posix_spawn(TRUE, [TRUE], {})), "os.posix_spawn", TRUE, TRUE),
        (lambda: _wait(os.fork()), "os.fork", "", "os.fork"),
        (lambda: os.spawnv(os.P_WAIT, TRUE, [TRUE]), "os.fork", "", "os.fork"),
        (lambda: _wait(pty.fork()[0]), "os.forkpty", "", "os.forkpty"),
    ],
)
def test_whatever_is_started_is_listed(start: Callable[[], object], event: str, program: str, words: str) -> None:
    started = watch_processes()
    start()
    assert [(each.event, each.program, str(each)) for each in started] == [(event, program, words)]


def test_programs_that_take_the_place_of_this_one_are_listed() -> None:
    started = watch_processes()
    with pytest.raises(FileNotFoundError):
        os.execv("/no/such/program", ["program"])
    assert [str(each) for each in started] == ["/no/such/program"]


def test_other_events_are_listed_where_they_are_asked_for() -> None:
    started = watch_processes(further=["compilefarm.test"])
    unasked = watch_processes()
    sys.audit("compilefarm.test", "a word")
    assert [str(each) for each in started] == ["a word"]
    assert unasked == []
