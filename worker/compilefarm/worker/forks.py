"""What a fork server does: it imports what children need, and becomes one whenever it is asked to (fork(2)).

Imports take seconds of a processor, a fork 20 ms. A fork server never sees a task, so that every child begins as the
first one did. Requests come on a socket that is its standard input: a frame of JSON, and with it (SCM_RIGHTS, unix(7))
what will be the child's standard input, output and error, a pipe for news of it, and the sandbox if there is one.
"""

from __future__ import annotations

import gc
import json
import os
import selectors
import signal
import socket
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compilefarm.worker.control_groups import enter
from compilefarm.worker.namespaces import (
    adopt_orphans,
    end_with_parent,
    enter_sandbox,
    give_up_privileges,
    go_on_without_parent,
    leave_no_core,
)
from compilefarm.worker.seccomp import filter_system_calls
from compilefarm.worker.strays import end_strays

# Of 1000: how much rather than others a child is ended when memory runs out.
_OOM_SCORE = 500
_REQUEST_BYTES = 128 * 1024
# Standard input, output and error, the pipe for news, and the first process of a sandbox.
_DESCRIPTORS = 5


@dataclass(frozen=True, slots=True)
class _Request:
    """A child that is wanted.

    Attributes:
        folder: where it runs.
        variables: of its environment.
        standard: its standard input, output and error.
        news: where it is told how it fares.
        sandbox: number of the first process of the sandbox that it joins, and a handle of that; None leaves it outside.
        group: folder of the control group that it joins; None leaves it in this one's.
    """

    folder: str
    variables: Mapping[str, str]
    standard: Sequence[int]
    news: int
    sandbox: tuple[int, int] | None
    group: Path | None

    @classmethod
    def receive(cls, requests: socket.socket) -> _Request | None:
        """The next one; None if nobody can ask any more.

        Raises:
            IndexError: fewer descriptors came than were sent, as when too many files are open (unix(7), MSG_CTRUNC).
                Without the one of its sandbox no child may be made.
        """
        content, descriptors, _, _ = socket.recv_fds(requests, _REQUEST_BYTES, _DESCRIPTORS)
        if not content:
            return None
        asked = json.loads(content)
        standard, news, further = descriptors[:3], descriptors[3], descriptors[4:]
        sandbox = None if asked["sandbox"] is None else (asked["sandbox"], further[0])
        group = None if asked["group"] is None else Path(asked["group"])
        return cls(asked["folder"], asked["variables"], standard, news, sandbox, group)

    def close_all_but_news(self) -> None:
        _close(*self.standard)
        if self.sandbox is not None:
            os.close(self.sandbox[1])


@dataclass(frozen=True, slots=True)
class _Child:
    pid: int
    handle: int
    news: int

    def tell_end(self, *, others: Collection[int]) -> None:
        """To be called once it has ended: ends what is left of it, and of none of the others."""
        _, status = os.waitpid(self.pid, 0)
        end_strays(others)
        _tell(self.news, {"code": os.waitstatus_to_exitcode(status)})
        self.close()

    def close(self) -> None:
        _close(self.handle, self.news)


def wait_to_be_forked() -> None:
    """Returns in every child that is asked for, and never in this process, which ends when nobody can ask any more, and
    with it all that is left of children.

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
    while True:
        for key, _ in selector.select():
            if key.fileobj is not requests:
                selector.unregister(key.fd)
                children.pop(key.fd).tell_end(others=_pids(children))
                continue
            request = _Request.receive(requests)
            if request is None:
                end_strays(())
                os._exit(0)
            try:
                pid = os.fork()
            except OSError as error:
                _tell(request.news, {"error": f"no process could be forked: {error}"})
                request.close_all_but_news()
                os.close(request.news)
                continue
            if pid == 0:
                selector.close()
                requests.close()
                for other in children.values():
                    other.close()
                _become(request)
                return
            child = _watched(pid, request)
            children[child.handle] = child
            selector.register(child.handle, selectors.EVENT_READ)


def _pids(children: Mapping[int, _Child]) -> set[int]:
    return {child.pid for child in children.values()}


def _watched(pid: int, request: _Request) -> _Child:
    """The child, once who asked has been told of it; it is killed if nobody wants it any more."""
    # In a sandbox, whoever asked has ended that.
    if not _tell(request.news, {"pid": pid}) and request.sandbox is None:
        os.kill(pid, signal.SIGKILL)
    request.close_all_but_news()
    return _Child(pid, os.pidfd_open(pid), request.news)


def _tell(news: int, message: dict[str, Any]) -> bool:
    """Whether who asked still wants to know."""
    try:
        os.write(news, json.dumps(message).encode() + b"\n")
    except BrokenPipeError:
        return False
    return True


def _become(request: _Request) -> None:
    """The rest of a fork: its pipes, its place, its surroundings. Ends the process if it cannot get there."""
    try:
        os.setsid()
        _be_ended_first()
        if request.group is not None:
            enter(request.group)
        for target, descriptor in enumerate(request.standard):
            os.dup2(descriptor, target)
        _close(*request.standard, request.news)
        if request.sandbox is None:
            end_with_parent()
            adopt_orphans()
        else:
            first_pid, first = request.sandbox
            enter_sandbox(first_pid, first)
            os.close(first)
            give_up_privileges()
            leave_no_core()
            filter_system_calls()
            # It ends with the sandbox.
            _stay_outside()
        os.environ.update(request.variables)
        os.chdir(request.folder)
        # It was looked up once, perhaps, in the process that was forked.
        tempfile.tempdir = None
    except BaseException as error:  # noqa: BLE001 - a process that may be half in a sandbox goes no further
        os.write(2, f"the process could not get to its place: {error!r}\n".encode())
        os._exit(1)


def _be_ended_first() -> None:
    """When the machine's memory runs out the kernel ends this process before the farm (proc(5))."""
    score = Path("/proc/self/oom_score_adj")
    # Without privilege it can only become higher; a pod of Kubernetes may have a higher one.
    if int(score.read_text()) < _OOM_SCORE:
        score.write_text(str(_OOM_SCORE))


def _stay_outside() -> None:
    """Returns in a child of this process, which is in the namespace of processes that this one has entered: children
    alone are (pid_namespaces(7)). This process ends as that one does.
    """
    pid = os.fork()
    if pid == 0:
        # Signals to a group reach this process otherwise, from inside the sandbox.
        os.setsid()
        end_with_parent()
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
