"""The fork server: a process that imports what children need, and forks a child for each request (fork(2)).

Imports take seconds of a processor, a fork 20 ms. A fork server never sees a task, so that every child begins as the
first one did. Requests come on a socket that is its standard input: a frame of JSON, and with it (SCM_RIGHTS, unix(7))
the child's standard input, output and error, a pipe that tells the supervisor its status, and the sandbox if any.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import selectors
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from compilefarm.worker.control_groups import enter
from compilefarm.worker.descendants import kill_descendants
from compilefarm.worker.namespaces import (
    adopt_orphans,
    end_with_parent,
    enter_sandbox,
    give_up_privileges,
    go_on_without_parent,
    leave_no_core,
    queue_few_signals,
)
from compilefarm.worker.seccomp import filter_system_calls

# Of 1000: how much rather than others a child is ended when memory runs out.
_OOM_SCORE = 500
# How much nicer children are than the farm, which has others waiting: a processor that both want is the farm's for
# nine tenths (sched(7)). Without privilege nobody takes that back.
_NICENESS = 10
_REQUEST_BYTES = 128 * 1024
# Standard input, output and error, the status pipe, and the first process of a sandbox.
_DESCRIPTORS = 5


@dataclass(frozen=True, slots=True)
class _Request:
    """A request for a child.

    Attributes:
        folder: the working directory of the child.
        variables: its environment variables.
        standard: its standard input, output and error.
        status_pipe: where its number and its exit status are written.
        sandbox: number of the first process of the sandbox that it joins, and a handle of that; None: no sandbox.
        group: folder of the control group that it joins; None: that of the fork server.
    """

    folder: str
    variables: Mapping[str, str]
    standard: Sequence[int]
    status_pipe: int
    sandbox: tuple[int, int] | None
    group: Path | None

    @classmethod
    def receive(cls, requests: socket.socket) -> _Request | None:
        """Receives the next request; None once the supervisor has closed its end.

        Raises:
            IndexError: fewer descriptors came than were sent, as when too many files are open (unix(7), MSG_CTRUNC).
                Without the one of its sandbox no child may be made.
        """
        content, descriptors, _, _ = socket.recv_fds(requests, _REQUEST_BYTES, _DESCRIPTORS)
        if not content:
            return None
        asked = json.loads(content)
        standard, status_pipe, further = descriptors[:3], descriptors[3], descriptors[4:]
        sandbox = None if asked["sandbox"] is None else (asked["sandbox"], further[0])
        group = None if asked["group"] is None else Path(asked["group"])
        return cls(asked["folder"], asked["variables"], standard, status_pipe, sandbox, group)

    def close_all_but_status_pipe(self) -> None:
        _close(*self.standard)
        if self.sandbox is not None:
            os.close(self.sandbox[1])


@dataclass(frozen=True, slots=True)
class _Child:
    pid: int
    handle: int
    status_pipe: int

    def report_end(self, *, others: Collection[int]) -> None:
        """Reports the exit status of a child that has ended, and kills the descendants that it left behind."""
        _, status = os.waitpid(self.pid, 0)
        kill_descendants(others)
        _report(self.status_pipe, {"code": os.waitstatus_to_exitcode(status)})
        self.close()

    def close(self) -> None:
        _close(self.handle, self.status_pipe)


def wait_to_be_forked() -> None:
    """Forks a child for each request. Returns in each child only; the fork server exits here, with all descendants,
    once the supervisor has closed its end. From here on garbage is collected.

    To be called with one thread of Python: others would be missing in children, and locks that they hold would stay
    locked.
    """
    go_on_without_parent()
    adopt_orphans()
    requests = socket.socket(fileno=os.dup(0))
    children: dict[int, _Child] = {}
    selector = selectors.DefaultSelector()
    selector.register(requests, selectors.EVENT_READ)
    # What was imported is looked through no more, and its pages stay shared with the children.
    gc.collect()
    gc.freeze()
    gc.enable()
    while True:
        for key, _ in selector.select():
            if key.fileobj is not requests:
                selector.unregister(key.fd)
                children.pop(key.fd).report_end(others=_pids(children))
                continue
            request = _Request.receive(requests)
            if request is None:
                kill_descendants(())
                os._exit(0)
            pid = _fork_for(request)
            if pid is None:
                continue
            if pid == 0:
                selector.close()
                requests.close()
                for other in children.values():
                    other.close()
                _become_child(request)
                return
            child = _watched(pid, request)
            children[child.handle] = child
            selector.register(child.handle, selectors.EVENT_READ)


def end_child(code: int) -> NoReturn:
    """Ends a child as Python ends a process, but for freeing, one by one, the modules that it was forked with, whose
    memory it shares until then: a third of a second of a processor after each task.
    """
    # In this order, as Python does: threads that are no daemons are waited for, and pools of threads end theirs.
    threading._shutdown()  # type: ignore[attr-defined]  # typeshed has it not
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _pids(children: Mapping[int, _Child]) -> set[int]:
    return {child.pid for child in children.values()}


def _fork_for(request: _Request) -> int | None:
    """Forks; returns what `os.fork` does, or None where that failed, which the supervisor is told."""
    try:
        return os.fork()
    except OSError as error:
        _report(request.status_pipe, {"error": f"no process could be forked: {error}"})
        request.close_all_but_status_pipe()
        os.close(request.status_pipe)
        return None


def _watched(pid: int, request: _Request) -> _Child:
    """Tells the supervisor of a new child; kills the child if the supervisor has gone."""
    # In a sandbox, whoever asked has ended that.
    if not _report(request.status_pipe, {"pid": pid}) and request.sandbox is None:
        os.kill(pid, signal.SIGKILL)
    request.close_all_but_status_pipe()
    return _Child(pid, os.pidfd_open(pid), request.status_pipe)


def _report(status_pipe: int, message: dict[str, Any]) -> bool:
    """Writes a message to the supervisor; returns whether it still listens."""
    try:
        os.write(status_pipe, json.dumps(message).encode() + b"\n")
    except BrokenPipeError:
        return False
    return True


def _become_child(request: _Request) -> None:
    """Sets up a forked child: session, pipes, sandbox, variables and working directory. Exits if that fails."""
    try:
        os.setsid()
        _raise_oom_score()
        os.nice(_NICENESS)
        if request.group is not None:
            enter(request.group)
        for target, descriptor in enumerate(request.standard):
            os.dup2(descriptor, target)
        _close(*request.standard, request.status_pipe)
        if request.sandbox is None:
            end_with_parent()
            adopt_orphans()
        else:
            first_pid, first = request.sandbox
            enter_sandbox(first_pid, first)
            os.close(first)
            give_up_privileges()
            leave_no_core()
            queue_few_signals()
            # It ends with the sandbox.
            _enter_pid_namespace()
            # Chosen outside, where there is epoll; processes that tune in torch take the default.
            selectors.DefaultSelector = selectors.PollSelector  # type: ignore[assignment, misc]
        os.environ.update(request.variables)
        os.chdir(request.folder)
        # It was looked up once, perhaps, in the process that was forked.
        tempfile.tempdir = None
    except BaseException as error:  # noqa: BLE001 - a process that may be half in a sandbox goes no further
        os.write(2, f"the child could not be set up: {error!r}\n".encode())
        os._exit(1)


def _raise_oom_score() -> None:
    """Has the kernel kill this process before the farm when memory runs out (proc(5))."""
    score = Path("/proc/self/oom_score_adj")
    # Without privilege it can only become higher; a pod of Kubernetes may have a higher one.
    if int(score.read_text()) < _OOM_SCORE:
        score.write_text(str(_OOM_SCORE))


def _enter_pid_namespace() -> None:
    """Forks once more and returns in the new process: after setns(2), only children are in the process namespace
    (pid_namespaces(7)). This process waits outside and ends as the new one does. Both are under the filter.
    """
    pid = os.fork()
    if pid == 0:
        # Signals to a group reach this process otherwise, from inside the sandbox.
        os.setsid()
        end_with_parent()
    filter_system_calls()
    if pid == 0:
        return
    # Nobody waits for the end of a pipe that this process keeps open.
    os.closerange(0, 3)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        os._exit(code)
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
    os._exit(128 - code)


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
