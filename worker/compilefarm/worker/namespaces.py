"""Enters the sandbox that bubblewrap has made around another process, without running a program.

A child is a fork of a process that has imported what it needs. bubblewrap can only run programs, so it makes the
sandbox around a process that does nothing, and the child joins that one's namespaces (setns(2), namespaces(7)). What
bubblewrap would take from a program, the child gives up itself: every capability, and the way to get one.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import signal
import struct

# What a program has to be that is run in a sandbox only so that others can join it: it says when the sandbox is there.
# As the first process there, it is the parent of all that lose theirs, and has the kernel forget them when they end. It
# leaves no core, see below, and closes its memory (PR_SET_DUMPABLE): a child could have it run what it likes otherwise
# (/proc/1/mem), without the limits that the child has.
PLACEHOLDER = """
import ctypes, os, resource, signal, sys
resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
if ctypes.CDLL(None).prctl(4, 0, 0, 0, 0) != 0:
    sys.exit("the memory of the first process cannot be closed")
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
os.write(1, b".")
while True:
    signal.pause()
"""

# linux/sched.h. Mounts come last: there is another /proc behind them.
_NAMESPACES = {
    "cgroup": 0x02000000,
    "ipc": 0x08000000,
    "uts": 0x04000000,
    "net": 0x40000000,
    "pid": 0x20000000,
    "mnt": 0x00020000,
}
# Shared memory of the sandbox. Its size bounds what its files hold; each takes a kilobyte of the kernel's besides, and
# there may be as many as would fill an eighth of the machine.
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - it is the sandbox's own
_MOST_SHARED_FILES = 4096
# Libraries of torch queue none. Within a user namespace those count that are made there.
_MOST_SIGNALS = 1024
# linux/mount.h; the flags of statvfs(3) have the same numbers there. How times of access are kept stays as it is.
_MS_REMOUNT = 32
_MS_BIND = 4096
_KEPT_FLAGS = os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC
_CLONE_NEWUSER = 0x10000000
_NS_GET_USERNS = 0xB701  # linux/nsfs.h
# linux/prctl.h
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_CAPABILITY_VERSION = 0x20080522  # linux/capability.h: _LINUX_CAPABILITY_VERSION_3

_libc = ctypes.CDLL(None, use_errno=True)


def end_with_parent() -> None:
    """Has the kernel end this process when the one that started it ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def go_on_without_parent() -> None:
    """Has the kernel continue this process, should it be stopped, when the one that started it ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)


def adopt_orphans() -> None:
    """Has the kernel make this process the parent of whatever below it loses its own."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def enter_sandbox(inside: int, handle: int) -> None:
    """Moves this process, which has one thread, to where another one is. Its children will be there in all respects; it
    itself is still seen from outside as a process of its own.

    Args:
        inside: number of the first process in the sandbox.
        handle: of that process (pidfd_open(2)).

    Raises:
        OSError: the kernel does not allow it.
        ProcessLookupError: that process has ended.
    """
    namespaces = {kind: os.open(f"/proc/{inside}/ns/{kind}", os.O_RDONLY) for kind in (*_NAMESPACES, "user")}
    here = os.open("/proc/self/ns/user", os.O_RDONLY)
    # It was that process, and not another one that got its number, whose namespaces were opened.
    signal.pidfd_send_signal(handle, 0)
    # bubblewrap makes mounts as the administrator of one user namespace, and runs programs in one within that, unless
    # the user is the administrator. A machine's own administrator may have neither.
    owner = fcntl.ioctl(namespaces["mnt"], _NS_GET_USERNS)
    if not os.path.sameopenfile(owner, here):
        _setns(owner, _CLONE_NEWUSER)
    for kind, flag in _NAMESPACES.items():
        _setns(namespaces[kind], flag)
    _guard_devices()
    _bound_shared_files()
    if not os.path.sameopenfile(namespaces["user"], owner):
        _setns(namespaces["user"], _CLONE_NEWUSER)
    for descriptor in (*namespaces.values(), here, owner):
        os.close(descriptor)


def leave_no_core() -> None:
    """Has the kernel write down nothing of this process and its children when they crash, and start no program for it,
    which would run outside of every sandbox, as the administrator, with what they left: so it takes a limit of 1
    (core(5), fs/coredump.c).
    """
    resource.setrlimit(resource.RLIMIT_CORE, (1, 1))


def queue_few_signals() -> None:
    """Bounds the signals of this process and its children that wait, and their timers, of which each has one. They
    count for the farm's user, too: with all that one may have, none of its processes could make a timer
    (timer_create(2)).
    """
    resource.setrlimit(resource.RLIMIT_SIGPENDING, (_MOST_SIGNALS, _MOST_SIGNALS))


def give_up_privileges() -> None:
    """Gives up all capabilities of this process and its children, for ever."""
    for capability in range(64):
        if _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            # There are no more.
            break
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    header = struct.pack("II", _CAPABILITY_VERSION, 0)
    if _libc.capset(header, bytes(24)) != 0:
        raise _error("capset(2)")
    # Its own files in /proc are closed to a process whose privileges change (proc(5)).
    _prctl(_PR_SET_DUMPABLE, 1)


def _guard_devices() -> None:
    """Keeps the files of devices as they are: an owner inside could close them to everybody, since they are the
    machine's. bubblewrap cannot: what it makes read-only is no device any more.
    """
    for entry in os.scandir("/dev"):
        if not entry.is_symlink() and entry.path != _SHARED_MEMORY:
            _remount(entry.path, _MS_BIND | os.ST_RDONLY)


def _bound_shared_files() -> None:
    """Bounds the number of files in the sandbox's shared memory, of which bubblewrap can bound the size alone."""
    _remount(_SHARED_MEMORY, 0, options=f"nr_inodes={_MOST_SHARED_FILES}".encode())


def _remount(path: str, further_flags: int, *, options: bytes | None = None) -> None:
    kept = os.statvfs(path).f_flag & _KEPT_FLAGS
    flags = ctypes.c_ulong(_MS_REMOUNT | further_flags | kept)
    if _libc.mount(None, path.encode(), None, flags, options) != 0:
        raise _error(f"mount(2) of {path}")


def _setns(descriptor: int, flag: int) -> None:
    if _libc.setns(descriptor, flag) != 0:
        raise _error(f"setns(2) to {os.readlink(f'/proc/self/fd/{descriptor}')}")


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        raise _error(f"prctl(2) {option}")


def _error(call: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{call} failed: {os.strerror(number)}")
