"""A scripted child: `python -m compilefarm.worker.testing SCRIPT`. It speaks the real protocol and imports no torch.

For tests of what stands around a compile. It goes through the same supervisor and pipes as the real child.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import importlib.metadata
import math
import mmap
import os
import platform
import resource
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from compilefarm.core.digests import digest_of
from compilefarm.core.expressions import EQ, MAX
from compilefarm.v1.child_pb2 import (
    BuildTrial,
    ChildBlob,
    ChildFailure,
    ChildMessage,
    ChildProgress,
    ChildReady,
    CompileResult,
    Toolchain,
)
from compilefarm.v1.environment_pb2 import Environment
from compilefarm.v1.graph_pb2 import Expression, Operation
from compilefarm.v1.job_pb2 import (
    FAILURE_KIND_COMPILE_ERROR,
    FAILURE_KIND_VERIFICATION,
    PHASE_COMPILING,
    CompileFailure,
    FailureKind,
    Job,
)
from compilefarm.v1.manifest_pb2 import ENCODING_IDENTITY, Blob, Library, Timing, Verification
from compilefarm.worker import limits
from compilefarm.worker.control_groups import ControlGroups
from compilefarm.worker.fork_server import ForkServer
from compilefarm.worker.forks import wait_to_be_forked
from compilefarm.worker.frames import pack_frame, write_frame
from compilefarm.worker.gpu_lock import GpuLock
from compilefarm.worker.pieces import PIECE_BYTES, pieces_of
from compilefarm.worker.process import ChildSettings
from compilefarm.worker.sandbox import Sandbox
from compilefarm.worker.tasks import receive_task

ENVIRONMENT = Environment(torch="2.11.0", python_abi="cpython-311-x86_64-linux-gnu")
PROGRAM = b"a scripted program"
# An artifact that takes a while to go through a pipe.
_MUCH_BYTES = 256 * 1024 * 1024
# Every script does this job as it should: a slot that goes on after the worst of a script can show it.
ORDINARY = Job(environment=ENVIRONMENT)
_PR_SET_NAME = 15  # linux/prctl.h
_LARGE_BYTES = 16 * 1024 * 1024
# A number of no failure and no phase.
_UNKNOWN: Any = 4711
_MEASUREMENTS = 20
_MEASUREMENT_SECONDS = 0.01
# What the kernel holds at most of a pair of UNIX sockets, as it is set by default.
_SOCKET_PAIR_BYTES = 512 * 1024
# Of one for datagrams.
_DATAGRAMS_BYTES = 2 * 1024 * 1024
# A table of addresses has a page, and tells of 2 MiB of them.
_TABLE_SPAN_BYTES = 2 * 1024 * 1024
_TABLES = _LARGE_BYTES // mmap.PAGESIZE
_TAKEN_BYTES = 512 * 1024 * 1024


def scripted_command(script: str, *limits: str) -> tuple[str, ...]:
    """The program that children of a script are forked from."""
    return (sys.executable, "-m", "compilefarm.worker.testing", script, *limits)


def child_settings(
    script: str,
    *limits: str,
    start_seconds: float = 60.0,
    output_bytes: int = 1 << 30,
    memory_bytes: int | None = None,
    disk_bytes: int | None = None,
    most_tasks: int | None = None,
    most_files: int | None = None,
    groups: ControlGroups | None = None,
    sandbox: Sandbox | None = None,
    answer_seconds: float = 20.0,
    **environment: str,
) -> ChildSettings:
    """Returns settings of a child that plays a script.

    Args:
        script: its name.
        limits: options of compilefarm.worker.limits, for the child itself.
        start_seconds, output_bytes, memory_bytes, disk_bytes, most_tasks, most_files, groups, sandbox,
            answer_seconds: see ChildSettings.
        environment: see ForkServer.

    Returns:
        Settings whose fork server has to be closed in the end.
    """
    return ChildSettings(
        server=ForkServer(scripted_command(script, *limits), environment=environment, answer_seconds=answer_seconds),
        answer_seconds=answer_seconds,
        start_seconds=start_seconds,
        output_bytes=output_bytes,
        memory_bytes=memory_bytes,
        disk_bytes=disk_bytes,
        most_tasks=most_tasks,
        most_files=most_files,
        sample_seconds=0.05,
        groups=groups,
        sandbox=sandbox,
    )


def program_of(job: Job, *, size_bytes: int) -> bytes:
    """Returns what the script "of-job" makes of a job: other bytes for every job."""
    line = _digest_of_job(job).encode()
    return (line * (size_bytes // len(line) + 1))[:size_bytes]


def _compile_of_job(pipe: BinaryIO, job: Job, *, work: argparse.Namespace) -> None:
    _note(work.ledger, "begun", job)
    if work.gate is not None:
        # A pipe with a name: opened for reading as soon as somebody has it open for writing.
        work.gate.open("rb").close()
    time.sleep(work.seconds)
    program = program_of(job, size_bytes=work.size)
    # Before it is sent: a child is killed once it has answered.
    _note(work.ledger, "finished", job)
    _compile(pipe, named=program, sent=program)


def _digest_of_job(job: Job) -> str:
    return digest_of(job.SerializeToString(deterministic=True))


def _note(ledger: Path | None, word: str, job: Job) -> None:
    if ledger is None:
        return
    with ledger.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(f"{word} {_digest_of_job(job)}\n")


def _is_second(ledger: Path) -> bool:
    with ledger.open("a+") as file:
        file.write(f"{os.getpid()}\n")
        file.seek(0)
        return len(file.readlines()) == 2


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("--size", type=int, default=1024, metavar="BYTES", help="of a program that is made of its job")
    option("--seconds", type=float, default=0.0, help="that making it takes")
    option("--gate", type=Path, help="a named pipe: nothing is made before somebody opens it for writing")
    option("--ledger", type=Path, help="a file that is told of every compile, or of every child")


def _compile(pipe: BinaryIO, *, named: bytes = PROGRAM, sent: bytes = PROGRAM, claimed: str | None = None) -> None:
    write_frame(pipe, ChildMessage(progress=ChildProgress(phase=PHASE_COMPILING)))
    digest = claimed or digest_of(sent)
    for piece in pieces_of(digest, sent):
        write_frame(pipe, ChildMessage(blob=piece))
    write_frame(pipe, ChildMessage(compiled=CompileResult(program=_blob_of(named))))


def _blob_of(content: bytes) -> Blob:
    return Blob(
        digest=digest_of(content),
        size_bytes=len(content),
        encoding=ENCODING_IDENTITY,
        content_size_bytes=len(content),
    )


def _fail(pipe: BinaryIO, *, kind: FailureKind.ValueType, invalid_request: bool = False) -> None:
    failure = CompileFailure(kind=kind, message="the script says so", error_type="scripted.Error")
    write_frame(pipe, ChildMessage(failed=ChildFailure(failure=failure, invalid_request=invalid_request)))


def _measure(pipe: BinaryIO, gpu: GpuLock) -> None:
    """Measures on a GPU, and returns when each measurement began and ended."""
    lines = []
    for _ in range(_MEASUREMENTS):
        with gpu.held():
            began = time.monotonic()
            while (ended := time.monotonic()) < began + _MEASUREMENT_SECONDS:
                pass
        lines.append(f"{began} {ended}")
    times = "\n".join(lines).encode()
    _compile(pipe, named=times, sent=times)


def _hang(pipe: BinaryIO) -> None:
    write_frame(pipe, ChildMessage(progress=ChildProgress(phase=PHASE_COMPILING)))
    signal.pause()


def _hang_with_grandchild(pipe: BinaryIO) -> None:
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as grandchild:
        print(f"grandchild {grandchild.pid}", file=sys.stderr, flush=True)
        _hang(pipe)


def _leave_a_daemon() -> bytes:
    """Starts a process that is of no group, session or parent of this one's, and keeps none of its pipes open.

    Returns:
        Its number.
    """
    reading, writing = os.pipe()
    if os.fork() == 0:
        # None is to be had in a sandbox.
        with contextlib.suppress(PermissionError):
            os.setsid()
        if (pid := os.fork()) == 0:
            os.closerange(0, writing + 1)
            signal.pause()
        os.write(writing, str(pid).encode())
        os._exit(0)
    os.wait()
    return os.read(reading, 20)


def _hang_with_daemon(pipe: BinaryIO) -> None:
    print(f"daemon {_leave_a_daemon().decode()}", file=sys.stderr, flush=True)
    _hang(pipe)


def _compile_with_daemon(pipe: BinaryIO) -> None:
    pid = _leave_a_daemon()
    _compile(pipe, named=pid, sent=pid)


def _die(_: BinaryIO) -> None:
    print("the last words", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)


def _exit(_: BinaryIO) -> None:
    print("the last words", file=sys.stderr, flush=True)
    raise SystemExit(3)


def _garbage(pipe: BinaryIO) -> None:
    pipe.write(b"\x05\x00\x00\x00\xff\xff\xff\xff\xff")
    pipe.flush()


def _half_a_message(pipe: BinaryIO) -> None:
    pipe.write(b"\x05\x00\x00\x00\xff")
    pipe.flush()


def _abort_without_memory(_: BinaryIO) -> None:
    print("terminate called after throwing an instance of 'std::bad_alloc'", file=sys.stderr, flush=True)
    os.abort()


def _allocate(pipe: BinaryIO) -> None:
    kept = []
    try:
        while True:
            kept.append(mmap.mmap(-1, _LARGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    except OSError as error:
        kept.clear()
        _report(pipe, error)


def _take(pipe: BinaryIO, some: Callable[[], object]) -> None:
    """Takes more and more of something, up to what a machine of tests surely has."""
    kept = [some() for _ in range(_TAKEN_BYTES // _LARGE_BYTES)]
    _hang(pipe)
    assert kept


def _shared_memory() -> mmap.mmap:
    memory = mmap.mmap(-1, _LARGE_BYTES)
    memory.write(bytes(_LARGE_BYTES))
    return memory


def _file_in_memory() -> int:
    descriptor = os.memfd_create("kept")
    os.write(descriptor, bytes(_LARGE_BYTES))
    return descriptor


def _full_sockets() -> list[socket.socket]:
    """Fills sockets with bytes that nobody reads."""
    pairs = [end for _ in range(_LARGE_BYTES // _SOCKET_PAIR_BYTES) for end in socket.socketpair()]
    for end in pairs:
        end.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                end.send(bytes(64 * 1024))
    return pairs


def _datagrams() -> list[socket.socket]:
    """Fills sockets with what others, which are closed by then, wrote to them."""
    kept = []
    for _ in range(_LARGE_BYTES // _DATAGRAMS_BYTES):
        kept.append(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        kept[-1].bind(f"socket-{secrets.token_hex(8)}")
        with contextlib.suppress(BlockingIOError):
            while True:
                with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                    sender.setblocking(False)
                    sender.sendto(bytes(160 * 1024), kept[-1].getsockname())
    return kept


def _waiting_connections() -> socket.socket:
    """Fills connections that nobody has accepted, at a socket that is the one open file of all of them."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(f"socket-{secrets.token_hex(8)}")
    listening.listen(_LARGE_BYTES // _SOCKET_PAIR_BYTES)
    for _ in range(_LARGE_BYTES // _SOCKET_PAIR_BYTES):
        with socket.socket(socket.AF_UNIX) as sender:
            sender.setblocking(False)
            sender.connect(listening.getsockname())
            with contextlib.suppress(BlockingIOError):
                while True:
                    sender.send(bytes(64 * 1024))
    return listening


def _addresses() -> mmap.mmap:
    """Pages of which each has a table of its own, and no memory."""
    memory = mmap.mmap(
        -1, _TABLES * _TABLE_SPAN_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ
    )
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    for place in range(0, len(memory), _TABLE_SPAN_BYTES):
        memory[place]
    return memory


def _process_with_places() -> int:
    """A process with some memory, each second page of which has a property of its own."""
    if (pid := os.fork()) == 0:
        memory = mmap.mmap(-1, 8000 * mmap.PAGESIZE)
        for place in range(0, len(memory), 2 * mmap.PAGESIZE):
            memory.madvise(mmap.MADV_DONTDUMP, place, mmap.PAGESIZE)
        signal.pause()
    return pid


def _process_with_open_folders() -> int:
    if (pid := os.fork()) == 0:
        kept = [os.open("/", os.O_RDONLY) for _ in range(512)]
        signal.pause()
        assert kept
    return pid


def _process_with_memory() -> int:
    if (pid := os.fork()) == 0:
        kept = os.urandom(_LARGE_BYTES)
        signal.pause()
        assert kept
    return pid


def _file() -> object:
    with tempfile.NamedTemporaryFile(delete=False) as file:
        file.write(bytes(_LARGE_BYTES))
    return file


def _file_without_a_name() -> int:
    descriptor, path = tempfile.mkstemp()
    os.unlink(path)
    os.write(descriptor, bytes(_LARGE_BYTES))
    return descriptor


def _write_a_large_file(pipe: BinaryIO) -> None:
    try:
        with tempfile.TemporaryFile() as file:
            while True:
                file.write(bytes(_LARGE_BYTES))
    except OSError as error:
        _report(pipe, error)


def _say_too_much(pipe: BinaryIO) -> None:
    while True:
        write_frame(pipe, ChildMessage(blob=ChildBlob(content=bytes(PIECE_BYTES), continues=True)))


def _say_many_timings(pipe: BinaryIO) -> None:
    """A message that would take 40 times the memory once it is parsed."""
    result = CompileResult(timings=[Timing()] * (_LARGE_BYTES // 2))
    write_frame(pipe, ChildMessage(compiled=result))


def _say_little_very_often(pipe: BinaryIO) -> None:
    said = pack_frame(ChildMessage(blob=ChildBlob())) * 1000
    while True:
        pipe.write(said)


def _time(pipe: BinaryIO, *timings: Timing) -> None:
    write_frame(pipe, ChildMessage(blob=ChildBlob(content=PROGRAM)))
    write_frame(pipe, ChildMessage(compiled=CompileResult(program=_blob_of(PROGRAM), timings=timings)))


def _lie_about_size(pipe: BinaryIO) -> None:
    blob = _blob_of(PROGRAM)
    blob.size_bytes = 1 << 40
    write_frame(pipe, ChildMessage(blob=ChildBlob(content=PROGRAM)))
    write_frame(pipe, ChildMessage(compiled=CompileResult(program=blob)))


def _break_off(pipe: BinaryIO) -> None:
    write_frame(pipe, ChildMessage(blob=ChildBlob(content=PROGRAM, continues=True)))
    write_frame(pipe, ChildMessage(compiled=CompileResult(program=_blob_of(PROGRAM))))


def _enter_a_phase_twice(pipe: BinaryIO) -> None:
    for _ in range(2):
        write_frame(pipe, ChildMessage(progress=ChildProgress(phase=PHASE_COMPILING)))
    _hang(pipe)


def _name_libraries(pipe: BinaryIO, *libraries: Library) -> None:
    write_frame(pipe, ChildMessage(blob=ChildBlob(content=PROGRAM)))
    for library in libraries:
        library.blob.CopyFrom(_blob_of(PROGRAM))
    write_frame(pipe, ChildMessage(compiled=CompileResult(program=_blob_of(PROGRAM), libraries=libraries)))


def _assume(pipe: BinaryIO, *guards: Expression) -> None:
    write_frame(pipe, ChildMessage(blob=ChildBlob(content=PROGRAM)))
    write_frame(pipe, ChildMessage(compiled=CompileResult(program=_blob_of(PROGRAM), guards=guards)))


def _true_guard(*, terms: int) -> Expression:
    zero = Expression(integer=0)
    largest = Operation(operator=MAX, operands=[zero] * (terms - 3))
    return Expression(operation=Operation(operator=EQ, operands=[Expression(operation=largest), zero]))


def _verify(pipe: BinaryIO, verification: Verification) -> None:
    write_frame(pipe, ChildMessage(verified=verification))


def _fail_at_length(pipe: BinaryIO) -> None:
    failure = CompileFailure(kind=FAILURE_KIND_COMPILE_ERROR, message="a" * 1_000_000)
    write_frame(pipe, ChildMessage(failed=ChildFailure(failure=failure)))


def _enter_an_unknown_phase(pipe: BinaryIO) -> None:
    write_frame(pipe, ChildMessage(progress=ChildProgress(phase=_UNKNOWN)))


def _report(pipe: BinaryIO, error: Exception) -> None:
    # It takes torch to tell errors apart, which no other script needs.
    from compilefarm.worker.failures import failure_of

    write_frame(pipe, ChildMessage(failed=failure_of(error)))


def _fork_for_ever(pipe: BinaryIO) -> None:
    children = 0
    try:
        while True:
            if os.fork() == 0:
                signal.pause()
            children += 1
    except BlockingIOError:
        content = str(children).encode()
        _compile(pipe, named=content, sent=content)


def _reach_out(pipe: BinaryIO) -> None:
    """Tries what a child must not do, with what the variables name, and returns what came of it."""
    secret = Path(os.environ["SECRET"])
    attempts: dict[str, Callable[[], object]] = {
        "connect": lambda: socket.create_connection(("127.0.0.1", int(os.environ["PORT"]))),
        "read": secret.read_text,
        "list": lambda: list(secret.parent.iterdir()),
        "signal": lambda: os.kill(int(os.environ["STRANGER"]), 0),
        "change root": lambda: os.chroot("/"),
    }
    for folder in (*os.environ["FOLDERS"].split(":"), os.environ["TMPDIR"]):
        attempts[f"write to {folder}"] = Path(folder, "planted").touch
    content = "\n".join(f"{name}: {_outcome(attempt)}" for name, attempt in attempts.items()).encode()
    _compile(pipe, named=content, sent=content)


def _outcome(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except OSError as error:
        return type(error).__name__
    return "done"


def _touch_the_programs(pipe: BinaryIO) -> None:
    """Changes the files that it and others run to what they are, which their file systems note."""
    for running in Path("/proc").glob("[0-9]*/exe"):
        with contextlib.suppress(OSError):
            running.chmod(stat.S_IMODE(running.stat().st_mode))
    _compile(pipe)


def _leave_behind(pipe: BinaryIO) -> None:
    """Returns what a child finds around it, and leaves there whatever it can for the next one."""
    name, cores = "\0left-behind", sorted(os.sched_getaffinity(0))
    places = [Path(folder) for folder in (os.environ["TMPDIR"], "/dev/shm")]  # noqa: S108 - it is the child's own
    with socket.socket(socket.AF_UNIX) as named:
        found = {
            **{str(place): os.listdir(place) for place in places},
            "variables": dict(os.environ),
            "processes": [name for name in os.listdir("/proc") if name.isdigit()],
            "name of a socket": _outcome(lambda: named.bind(name)),
            "niceness": os.getpriority(os.PRIO_PROCESS, 0),
            "name of a thread": _outcome(lambda: Path("/proc/self/comm").write_text("named")),
            "mask": os.umask(0o777),
            "cores": cores,
            "limit of files": resource.getrlimit(resource.RLIMIT_NOFILE),
            "ignored signals": [number for number in range(1, 32) if signal.getsignal(number) is signal.SIG_IGN],
        }
        os.umask(0o022)
        for place in places:
            (place / "left-behind").mkdir()
        os.environ["LEFT_BEHIND"] = "1"
        os.nice(5)
        os.sched_setaffinity(0, {cores[0]})
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.fork() == 0:
            os.setpgid(0, 0)
            signal.pause()
        content = repr(found).encode()
        _compile(pipe, named=content, sent=content)


def _bury(pipe: BinaryIO) -> None:
    """Leaves a folder that is deeper than a stack, with one in it that is closed."""
    for _ in range(1200):
        os.mkdir("a")
        os.chdir("a")
    Path("file").touch()
    os.mkdir("closed", mode=0)
    _compile(pipe)


def _hide_behind_a_thread(pipe: BinaryIO) -> None:
    """Processes that go on without their first thread, each in the place of the one before, hold files in memory."""
    if os.fork() == 0:
        _go_on_without_the_first_thread([_file_in_memory() for _ in range(_TAKEN_BYTES // _LARGE_BYTES)])
    _hang(pipe)


def _go_on_without_the_first_thread(held: object) -> None:
    def go_on() -> None:
        time.sleep(0.5)
        if os.fork() == 0:
            _go_on_without_the_first_thread(held)
        os._exit(0)

    threading.Thread(target=go_on).start()
    # exit(2), of one thread.
    ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[platform.machine()], 0)


def _run_what_may_not_be_read(_: BinaryIO) -> None:
    path = shutil.copy(str(shutil.which("sleep")), Path.cwd())
    os.chmod(path, 0o100)
    # Always one, and never one for long.
    running = subprocess.Popen([path, "0.5"])
    while True:
        time.sleep(0.25)
        latest = subprocess.Popen([path, "0.5"])
        running.wait()
        running = latest


def _close_its_folder(pipe: BinaryIO) -> None:
    os.chmod(os.environ["TMPDIR"], 0)
    _hang(pipe)


def _hide_behind_a_name(pipe: BinaryIO, some: Callable[[], object]) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_NAME, b"\xff\xfe", 0, 0, 0)
    _take(pipe, some)


def _make_folders(pipe: BinaryIO) -> None:
    for number in range(1000):
        os.mkdir(f"{number}")
    _hang(pipe)


def _open_many_files(pipe: BinaryIO) -> None:
    kept = [os.dup(0) for _ in range(500)]
    _hang(pipe)
    assert kept


def _stop_the_group(pipe: BinaryIO) -> None:
    write_frame(pipe, ChildMessage(progress=ChildProgress(phase=PHASE_COMPILING)))
    os.kill(0, signal.SIGSTOP)


def _print_variables(pipe: BinaryIO) -> None:
    content = "\n".join(f"{name}={value}" for name, value in sorted(os.environ.items())).encode()
    _compile(pipe, named=content, sent=content)


_COMPILES: dict[str, Callable[[BinaryIO], None]] = {
    "compile": _compile,
    "hang": _hang,
    "hang-with-grandchild": _hang_with_grandchild,
    "hang-with-daemon": _hang_with_daemon,
    "compile-with-daemon": _compile_with_daemon,
    "die": _die,
    "exit": _exit,
    "garbage": _garbage,
    "half-a-message": _half_a_message,
    "name-another-blob": lambda pipe: _compile(pipe, named=b"something else"),
    "lie-about-digest": lambda pipe: _compile(pipe, named=b"good", sent=b"evil", claimed=digest_of(b"good")),
    "refuse": lambda pipe: _fail(pipe, kind=FAILURE_KIND_COMPILE_ERROR, invalid_request=True),
    "fail": lambda pipe: _fail(pipe, kind=FAILURE_KIND_COMPILE_ERROR),
    "print-variables": _print_variables,
    "abort-without-memory": _abort_without_memory,
    "allocate": _allocate,
    "take-shared-memory": lambda pipe: _take(pipe, _shared_memory),
    "take-files-in-memory": lambda pipe: _take(pipe, _file_in_memory),
    "take-memory-of-processes": lambda pipe: _take(pipe, _process_with_memory),
    "take-sockets": lambda pipe: _take(pipe, _full_sockets),
    "take-datagrams": lambda pipe: _take(pipe, _datagrams),
    "take-waiting-connections": lambda pipe: _take(pipe, _waiting_connections),
    "take-addresses": lambda pipe: _take(pipe, _addresses),
    "take-places": lambda pipe: _take(pipe, _process_with_places),
    "take-open-folders": lambda pipe: _take(pipe, _process_with_open_folders),
    "take-files": lambda pipe: _take(pipe, _file),
    "take-files-without-a-name": lambda pipe: _take(pipe, _file_without_a_name),
    "write-a-large-file": _write_a_large_file,
    "say-too-much": _say_too_much,
    "say-many-timings": _say_many_timings,
    "say-little-very-often": _say_little_very_often,
    "take-no-time": lambda pipe: _time(pipe, Timing(phase=PHASE_COMPILING, seconds=float("nan"))),
    "take-centuries": lambda pipe: _time(pipe, Timing(phase=PHASE_COMPILING, seconds=1e300)),
    "take-time-twice": lambda pipe: _time(pipe, *[Timing(phase=PHASE_COMPILING, seconds=1.0)] * 2),
    "take-time-for-nothing": lambda pipe: _time(pipe, Timing(phase=_UNKNOWN, seconds=1.0)),
    # As many as a message holds.
    "take-time-for-many-phases": lambda pipe: _time(pipe, *[Timing()] * 500_000),
    "lie-about-size": _lie_about_size,
    "compile-much": lambda pipe: _compile(pipe, named=bytes(_MUCH_BYTES), sent=bytes(_MUCH_BYTES)),
    "break-off": _break_off,
    "enter-a-phase-twice": _enter_a_phase_twice,
    "name-many-libraries": lambda pipe: _name_libraries(
        pipe, *[Library(source_digest=digest_of(PROGRAM), name="kernel")] * 7200
    ),
    "assume-much": lambda pipe: _assume(pipe, *[_true_guard(terms=1000)] * 250),
    "assume-much-at-once": lambda pipe: _assume(pipe, _true_guard(terms=250_000)),
    "name-no-source": lambda pipe: _name_libraries(pipe, Library(source_digest="../../etc/passwd", name="kernel")),
    "name-a-colour": lambda pipe: _name_libraries(
        pipe, Library(source_digest=digest_of(PROGRAM), name="\x1b[31mkernel")
    ),
    "fail-in-an-unknown-way": lambda pipe: _fail(pipe, kind=_UNKNOWN),
    "fail-at-length": _fail_at_length,
    "enter-an-unknown-phase": _enter_an_unknown_phase,
    "fork-for-ever": _fork_for_ever,
    "reach-out": _reach_out,
    "stop-the-group": _stop_the_group,
    "touch-the-programs": _touch_the_programs,
    "bury": _bury,
    "leave-behind": _leave_behind,
    "close-its-folder": _close_its_folder,
    "hide-behind-a-thread": _hide_behind_a_thread,
    "run-what-may-not-be-read": _run_what_may_not_be_read,
    "make-folders": _make_folders,
    "open-many-files": _open_many_files,
    "hide-behind-a-name": lambda pipe: _hide_behind_a_name(pipe, _shared_memory),
}
_CHECKS: dict[str, Callable[[BinaryIO], None]] = {
    "fail-verification": lambda pipe: _fail(pipe, kind=FAILURE_KIND_VERIFICATION),
    "die-in-verification": _die,
    "hang-in-verification": lambda _: signal.pause(),
    "verify-at-length": lambda pipe: _verify(pipe, Verification(not_compared="a" * 10_000)),
    "verify-for-ever": lambda pipe: _verify(pipe, Verification(call_seconds=math.inf)),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("script")
    _add_arguments(parser)
    limits.add_arguments(parser)
    # A pool adds options of the real child.
    arguments, _ = parser.parse_known_args()
    wait_to_be_forked()
    script = arguments.script
    pipe = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    if script == "never-ready":
        signal.pause()
    if script == "die-before-ready" or (script == "die-second" and _is_second(arguments.ledger)):
        _die(pipe)
    if script == "stop-second" and _is_second(arguments.ledger):
        os.kill(os.getpid(), signal.SIGSTOP)
    version = os.environ.get("SCRIPTED_VERSION") or importlib.metadata.version("compilefarm")
    write_frame(pipe, ChildMessage(ready=ChildReady(environment=ENVIRONMENT, farm_version=version)))
    limits.impose(arguments)
    task = receive_task(sys.stdin.buffer, pipe)
    match task and task.WhichOneof("task"):
        case "compile" if task is not None and script == "of-job":
            _compile_of_job(pipe, task.compile.job, work=arguments)
        case "compile" if task is not None and script == "measure":
            _measure(pipe, GpuLock(Path(task.compile.gpu_lock)))
        case "compile":
            work = _compile if task is not None and task.compile.job == ORDINARY else _COMPILES.get(script, _compile)
            work(pipe)
        case "verify":
            check = _CHECKS.get(script)
            if check is None or (task is not None and task.verify.job == ORDINARY):
                write_frame(pipe, ChildMessage(verified=Verification(load_seconds=0.25)))
            else:
                check(pipe)
        case "probe":
            trials = [BuildTrial(program_digest=digest_of(str(os.getpid()).encode()), works=True)]
            write_frame(pipe, ChildMessage(toolchain=Toolchain(trials=trials)))


if __name__ == "__main__":
    main()
