"""A child that was taken over: `python probe.py` is forked as any child is, and tries what must be refused to it.

Each attempt is made once, and with arguments that do nothing where it is not refused. It returns, as JSON, what came of
each: "done", or the name of the error.
"""

from __future__ import annotations

import argparse
import array
import contextlib
import ctypes
import errno
import json
import os
import platform
import signal
import socket
import stat
import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from compilefarm.v1.child_pb2 import ChildBlob, ChildMessage, ChildReady, ChildTask
from compilefarm.worker import limits
from compilefarm.worker.forks import wait_to_be_forked
from compilefarm.worker.frames import read_frame, write_frame
from compilefarm.worker.seccomp import MACHINES
from compilefarm.worker.system_calls import EXAMINED, REFUSED

_NEW_USER = 0x10000000
_SOL_SOCKET = 1
# SO_ATTACH_FILTER, SO_ATTACH_BPF, SO_SNDBUF, SO_RCVBUF
_SOCKET_OPTIONS = {"filter": 26, "bpf": 50, "to send": 7, "to receive": 8}
_FOREIGN_FAMILIES = {"netlink filter": (16, 12), "packet": (17, 0), "alg": (38, 0), "vsock": (40, 0)}
# prctl(2), ioctl(2), personality(2), setrlimit(2), each with what the filter refuses.
_CLOSELY = {
    "prctl seccomp": ("prctl", 22, 2, 0),
    "whole cores": ("prctl", 62, 0, 0, 0, 0),
    "table of waiting threads": ("prctl", 78, 1, 16, 0, 0),
    "files of one thread": ("close_range", 99999, 99999, 2),
    "a thread with files of its own": ("clone", 0x10000, 0, 0, 0, 0),
    "pages of files": ("fadvise64", 0, 0, 0, 4),
    "pages of files that are mapped": ("madvise", 0, 0, 21),
    "lease of a file": ("fcntl", 0, 1024, 2),
    "notes of a folder": ("fcntl", 0, 1026, 1),
    "terminal input": ("ioctl", 0, 0x5412, 0),
    "limit of cores": ("setrlimit", 4, 0),
    "limit of cores of a process": ("prlimit64", 1, 4, 8, 0),
    "personality": ("personality", 0x0040000),
    "clone user": ("clone", _NEW_USER, 0, 0, 0, 0),
    "clone3": ("clone3", 0, 0),
}
_CLOCK_MONOTONIC = 1
_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    limits.add_arguments(parser)
    arguments = parser.parse_args()
    wait_to_be_forked()
    with os.fdopen(os.dup(1), "wb") as pipe:
        write_frame(pipe, ChildMessage(ready=ChildReady()))
        limits.impose(arguments)
        read_frame(sys.stdin.buffer, ChildTask)
        found = json.dumps(_found()).encode()
        _open_its_folder()
        kept = _descriptors_on_their_way()
        write_frame(pipe, ChildMessage(blob=ChildBlob(content=found)))
        signal.pause()
        assert kept


def _open_its_folder() -> None:
    """Leaves a program there that runs with the rights of the farm, for all users of the machine."""
    folder = Path(os.environ["TMPDIR"])
    (folder / "program").touch()
    (folder / "program").chmod(0o4755)
    folder.chmod(0o777)


def _descriptors_on_their_way() -> list[socket.socket]:
    """Sockets that hold as many as the kernel lets this user send, received by nobody."""
    many, kept = array.array("i", [0] * 250), list[socket.socket]()
    with contextlib.suppress(OSError):
        while True:
            kept += socket.socketpair()
            kept[-1].setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    kept[-1].sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, many)])
    return kept


def _found() -> dict[str, object]:
    return {
        "calls": {name: _outcome(attempt) for name, attempt in _calls()},
        "places": {name: _outcome(attempt) for name, attempt in _places()},
        "writable": _writable(path for path in _files(Path("/proc")) if not _is_own(path)),
        "changed": [str(path) for path in _of_the_machine() if _outcome(partial(_change, path)) == "done"],
        "own": _writable(Path("/proc/self", name) for name in ("comm", "oom_score_adj")),
        "readable": {name: _content_of(Path("/proc", name)) for name in os.environ["HIDDEN"].split(":")},
        "processes": [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()],
        "files in memory": _files_in_memory(),
        "timers": _timers(),
        "oom score": int(Path("/proc/self/oom_score_adj").read_text()),
        "devices": sorted(os.listdir("/dev")),
        "cores": {name: _core_limits(name) for name in ("1", "self")},
        "status": {name: _status(name) for name in ("1", "self")},
    }


def _files_in_memory() -> int:
    """How many empty files it can make where they are memory alone, of the most that are tried."""
    folder, made = Path("/dev/shm/many"), 0
    folder.mkdir()
    with contextlib.suppress(OSError):
        for made in range(1, 20_001):
            os.mknod(folder / str(made))
    return made


def _timers() -> int:
    """How many timers it can have, of the most that are tried."""
    # struct sigevent (sigevent(3type)): SIGEV_NONE.
    event, made = struct.pack("@PiiI", 0, 0, 1, 0).ljust(64, b"\0"), 0
    with contextlib.suppress(OSError):
        while made < 5000:
            _check(_libc.timer_create(_CLOCK_MONOTONIC, event, ctypes.byref(ctypes.c_void_p())))
            made += 1
    return made


def _status(process: str) -> dict[str, str]:
    return dict(line.split(":\t") for line in Path("/proc", process, "status").read_text().splitlines())


def _core_limits(process: str) -> list[str]:
    lines = Path("/proc", process, "limits").read_text().splitlines()
    return next(line for line in lines if line.startswith("Max core file size")).split()[4:6]


def _calls() -> Iterator[tuple[str, Callable[[], object]]]:
    column = MACHINES[platform.machine()].column
    for name, numbers in REFUSED.items():
        number = numbers[column]
        if number is not None:
            # No such namespace, address, number or size: what is not refused by the filter fails otherwise.
            yield name, lambda number=number: _call(number, -1, -1, -1, -1, -1, -1)
    for name, (call, *arguments) in _CLOSELY.items():
        yield name, lambda call=call, arguments=arguments: _call(EXAMINED[call][column], *arguments)
    for name, (family, protocol) in _FOREIGN_FAMILIES.items():
        yield f"socket {name}", partial(socket.socket, family, socket.SOCK_RAW, protocol)
    for name, option in _SOCKET_OPTIONS.items():
        yield f"socket {name}", lambda option=option: _set_no_option(option)


def _set_no_option(option: int) -> None:
    with socket.socket(socket.AF_UNIX) as any_socket:
        _check(_libc.setsockopt(any_socket.fileno(), _SOL_SOCKET, option, None, 0))


def _places() -> Iterator[tuple[str, Callable[[], object]]]:
    for name in ("STORE", "SIGNING_KEY"):
        yield f"look at {name}", lambda name=name: os.stat(os.environ[name])
    for name in ("/etc/passwd", "/home", "/run", "/var"):
        yield f"look at {name}", lambda name=name: os.stat(name)
    stranger = int(os.environ["STRANGER"])
    yield "signal a stranger", lambda: os.kill(stranger, 0)
    yield "read of a stranger", Path(f"/proc/{stranger}/environ").read_bytes
    yield "change the first process", lambda: os.close(os.open("/proc/1/mem", os.O_RDWR))
    yield "connect", lambda: socket.create_connection(("127.0.0.1", int(os.environ["PORT"])), timeout=5)
    yield "connect outside", lambda: socket.create_connection(("192.0.2.1", 80), timeout=5)
    yield "connect by name", lambda: _connect(f"\0{os.environ['SOCKET_NAME']}")
    yield "another user", lambda: os.setresuid(4321, 4321, 4321)
    yield "a device", lambda: os.mknod("/tmp/device", 0o20600, os.makedev(1, 1))
    yield "a terminal", lambda: os.close(os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY))
    yield "a session for a process that it starts", _begin_session
    yield "to be less nice", lambda: os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) - 1)
    yield "write to the root", lambda: Path("/planted").touch()
    yield "write to /sys", lambda: Path("/sys/planted").touch()
    yield "write to its folder", Path(os.environ["TMPDIR"], "planted").touch


def _begin_session() -> None:
    # Whoever is at the head of one, as the child is, begins no other.
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
        except OSError as error:
            os._exit(error.errno or 0)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    if code := os.waitstatus_to_exitcode(status):
        raise OSError(code, "refused")


def _connect(address: str) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)


def _files(folder: Path) -> Iterator[Path]:
    for place, _, names in os.walk(folder):
        yield from (Path(place, name) for name in names)


def _of_the_machine() -> Iterator[Path]:
    """Files and folders that are not the child's own."""
    yield from (path for path in _files(Path("/proc")) if not _is_own(path))
    yield from (path for path in Path("/dev").iterdir() if not path.is_symlink() and path.name != "shm")
    yield from map(Path, ("/", "/usr", "/etc/ld.so.cache", sys.prefix, sys.executable))
    # But for the copy that nobody else runs.
    yield from (path for path in Path("/proc").glob("[0-9]*/exe") if not _is_copy(path))


def _is_copy(path: Path) -> bool:
    # That of a process whose memory is closed cannot even be read.
    return _outcome(partial(os.readlink, path)) == "done" and os.readlink(path).startswith("/memfd:")


def _change(path: Path) -> None:
    """Sets the mode that it has."""
    path.chmod(stat.S_IMODE(path.stat().st_mode))


def _is_own(path: Path) -> bool:
    """Whether it tells of a process. Whoever is inside may do with its own as it likes."""
    return path.parts[2].isdigit() or path.parts[2] in ("self", "thread-self")


def _writable(paths: Iterable[Path]) -> list[str]:
    return [str(path) for path in paths if _outcome(partial(_open, path)) == "done"]


def _open(path: Path) -> None:
    os.close(os.open(path, os.O_WRONLY))


def _content_of(path: Path) -> str:
    try:
        return "something" if (os.listdir(path) if path.is_dir() else path.read_bytes()) else "nothing"
    except OSError as error:
        return errno.errorcode[error.errno or 0]


def _call(number: int, *arguments: int) -> None:
    # A number that is not used is an error of the kernel's.
    _check(_libc.syscall(number, *(ctypes.c_long(argument) for argument in arguments)))


def _check(result: int) -> None:
    if result == -1:
        raise OSError(ctypes.get_errno(), "refused")


def _outcome(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "done"


if __name__ == "__main__":
    main()
