"""The filter of system calls that children in a sandbox have, as a program of the kernel's (seccomp(2), bpf(4)).

It refuses what a compile has no use for and what leads out of sandboxes: mounts, other namespaces and processes, keys,
and the parts of the kernel that run programs of a caller. What it refuses fails with EPERM; calls that are newer than
this list fail as on an older kernel (ENOSYS), so that libraries take the older ones.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterable
from dataclasses import dataclass

from compilefarm.worker.system_calls import EXAMINED, NEWEST, REFUSED

# linux/bpf_common.h: load a word, jump if equal, greater, greater or equal, if a bit is set; mask; return.
_LOAD = 0x20
_EQUAL = 0x15
_GREATER = 0x25
_GREATER_OR_EQUAL = 0x35
_ANY_BIT = 0x45
_AND = 0x54
_RETURN = 0x06
# linux/seccomp.h: places in struct seccomp_data, and what is returned.
_NUMBER = 0
_ARCHITECTURE = 4
_ARGUMENTS = 16
_ALLOW = 0x7FFF0000
_ERROR = 0x00050000
_MODE_FILTER = 2
# linux/prctl.h
_PR_SET_DUMPABLE = 4
_PR_SET_SECCOMP = 22
# Threads of others stay off the other half of a core while one with such an order runs there.
_PR_SCHED_CORE = 62
# PR_TIMER_CREATE_RESTORE_IDS. The next, PR_FUTEX_HASH of Linux 6.16, has the kernel take a gigabyte at a call for each
# process, which counts as nobody's. PR_SET_VMA and PR_SET_PTRACER, names of memory and leave to look into it, have
# numbers of their own.
_NEWEST_OPTION = 77
_OPTIONS_APART = (0x53564D41, 0x59616D61)

# linux/sched.h: CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET.
_NEW_NAMESPACES = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
# CLONE_FILES, CLONE_THREAD; linux/close_range.h: CLOSE_RANGE_UNSHARE. What is open in a thread that has a table of its
# own is seen by nobody who counts (consumption.py).
_SHARING_FILES, _THREAD, _OWN_TABLE = 0x00000400, 0x00010000, 2
# linux/fadvise.h: POSIX_FADV_DONTNEED. What the machine keeps of files that can be read is for all of it.
_DONT_NEED = 4
# asm-generic/mman-common.h: MADV_COLD, MADV_PAGEOUT. By these, too, whoever owns a file, as root owns the system's, has
# the machine drop what it keeps of it, or do so first.
_RECLAIMS = (20, 21)
_AF_UNIX = 1
# AF_INET, AF_INET6. There is no network, and what TCP holds counts for the whole machine (tcp(7): tcp_mem).
_INTERNET = (2, 10)
_AF_NETLINK = 16
# NETLINK_ROUTE, of which libraries ask addresses (getifaddrs(3)), and NETLINK_KOBJECT_UEVENT, which tells of devices.
# Neither has anything to tell in a network namespace of one's own, nor takes an order without privilege.
_NETLINK_PROTOCOLS = (0, 15)
_SOL_SOCKET = 1
_SOCKET_FILTERS = (26, 50, 51, 52)  # SO_ATTACH_FILTER, _BPF, _REUSEPORT_CBPF, _REUSEPORT_EBPF
# SO_SNDBUF, SO_RCVBUF. What a socket may hold is counted as what it may by default (consumption.py), and is 20 times as
# much with these since Linux 6.17.
_SOCKET_SIZES = (7, 8)
_TERMINAL_INPUT = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX
# linux/btrfs.h: everybody may have such a file system write down all that it was given, as with syncfs, and make copies
# of parts of it that only the administrator can remove. Clones of files (FICLONE), which others have, are of that kind.
_TYPE_OF_COMMAND = 0xFF00
_COMMANDS_OF_BTRFS = 0x9400
# linux/fscrypt.h: FS_IOC_SET_ENCRYPTION_POLICY, ADD_ENCRYPTION_KEY, REMOVE_ENCRYPTION_KEY and its form for all users.
# Keys of a file system that can encrypt count for the farm's user, and stay for as long as it is mounted; and those
# that the user has there could be taken out.
_COMMANDS_OF_ENCRYPTION = (0x800C6613, 0xC0506617, 0xC0406618, 0xC0406619)
# linux/fcntl.h: F_SETLEASE, F_NOTIFY. Whoever opens a file that somebody has a lease on waits for up to 45 s, in other
# sandboxes and outside; every user can have one on what is its own, such as files of the interpreter. The other command
# tells what is done with the files of a folder.
_OTHERS_FILES = (1024, 1026)
_NEWEST_COMMAND = 1038  # F_SET_FILE_RW_HINT. Leases of folders came later, in Linux 6.19.
# asm-generic/resource.h. Only with a limit of 1 does the kernel start no program for a core (namespaces.py); everybody
# may lower a limit, and 0 is one of files alone.
_RLIMIT_CORE = 4
# Linux as it is, and the question which one it is. Others give up the random places of memory.
_PERSONALITIES = (0, 0xFFFFFFFF)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """An architecture of processors.

    Attributes:
        audit: what the kernel calls it (linux/audit.h).
        column: of the tables of system calls.
        first_foreign: the first number of another interface of the same architecture; None where there is none.
    """

    audit: int
    column: int
    first_foreign: int | None = None

    def number(self, call: str) -> int:
        return EXAMINED[call][self.column]

    @property
    def refused(self) -> list[int]:
        """Numbers of calls that are refused whatever their arguments are."""
        return [number for numbers in REFUSED.values() if (number := numbers[self.column]) is not None]


MACHINES = {
    # From x32 on, programs of which count in 32 bits, the numbers have this bit (asm/unistd.h).
    "x86_64": Machine(audit=0xC000003E, column=0, first_foreign=0x40000000),
    "aarch64": Machine(audit=0xC00000B7, column=1),
}

_Instruction = tuple[int, int, int, int]
_RELOAD: _Instruction = (_LOAD, 0, 0, _NUMBER)

_libc = ctypes.CDLL(None, use_errno=True)


class UnknownMachine(RuntimeError):
    """The system calls of this architecture are not known here."""


def filter_program(machine: str | None = None, *, is_first: bool = False) -> bytes:
    """The filter, as an array of struct sock_filter (linux/filter.h).

    Args:
        machine: an architecture as uname(2) calls it; None is this machine's.
        is_first: whether it is for the first process of a sandbox, which sees to itself that it leaves no core, and
            closes its memory to others of its user (PR_SET_DUMPABLE). That also hides how much memory a process takes.

    Raises:
        UnknownMachine: its system calls are not known.
    """
    name = machine or platform.machine()
    if name not in MACHINES:
        raise UnknownMachine(f"no filter of system calls is known for {name}, only for {' and '.join(MACHINES)}")
    return b"".join(
        struct.pack("=HBBI", *instruction) for instruction in _instructions(MACHINES[name], is_first=is_first)
    )


def open_filter() -> int:
    """A file that holds the filter of a sandbox's first process, for a program that is told its descriptor
    (bwrap --seccomp).
    """
    descriptor = os.memfd_create("filter")
    os.write(descriptor, filter_program(is_first=True))
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def filter_system_calls() -> None:
    """Puts this process and all that it will start under the filter, for ever.

    Raises:
        OSError: the kernel does not allow it; it does to a process that gave up gaining privileges.
        UnknownMachine: see filter_program.
    """
    program = filter_program()
    instructions = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog
    described = struct.pack("@HP", len(program) // 8, ctypes.addressof(instructions))
    if _libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_MODE_FILTER), described, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(2) PR_SET_SECCOMP failed: {os.strerror(number)}")


def _instructions(machine: Machine, *, is_first: bool) -> list[_Instruction]:
    program = [(_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 1, 0, machine.audit), _refuse(errno.EPERM), _RELOAD]
    if machine.first_foreign is not None:
        program += [(_GREATER_OR_EQUAL, 0, 1, machine.first_foreign), _refuse(errno.EPERM)]
    program += [(_GREATER, 0, 1, NEWEST), _refuse(errno.ENOSYS)]
    for number in machine.refused:
        program += _if_call(number, [_refuse(errno.EPERM)])
    # It takes its flags from memory, where a filter cannot look.
    program += _if_call(machine.number("clone3"), [_refuse(errno.ENOSYS)])
    program += _if_call(machine.number("clone"), [*_refuse_bits(0, _NEW_NAMESPACES), *_refuse_threads_with_own_files()])
    program += _if_call(machine.number("close_range"), _refuse_bits(2, _OWN_TABLE))
    program += _if_call(machine.number("fadvise64"), _refuse_values(3, (_DONT_NEED,)))
    # As on a kernel that is older than these.
    program += _if_call(machine.number("madvise"), _refuse_values(2, _RECLAIMS, error=errno.EINVAL))
    files = [_load(1), (_GREATER, 0, 1, _NEWEST_COMMAND), _refuse(errno.EINVAL), _RELOAD]
    program += _if_call(machine.number("fcntl"), [*_refuse_values(1, _OTHERS_FILES), *files])
    # As on another file system.
    btrfs = [
        _load(1),
        (_AND, 0, 0, _TYPE_OF_COMMAND),
        (_EQUAL, 0, 1, _COMMANDS_OF_BTRFS),
        _refuse(errno.ENOTTY),
        _RELOAD,
    ]
    encryption = _refuse_values(1, _COMMANDS_OF_ENCRYPTION, error=errno.ENOTTY)
    program += _if_call(machine.number("ioctl"), [*_refuse_values(1, _TERMINAL_INPUT), *btrfs, *encryption])
    program += _if_call(machine.number("personality"), _refuse_others(0, _PERSONALITIES))
    options = (_PR_SET_SECCOMP, _PR_SCHED_CORE, *(() if is_first else (_PR_SET_DUMPABLE,)))
    program += _if_call(machine.number("prctl"), [*_refuse_values(0, options), *_refuse_newer_options()])
    if not is_first:
        # To ask for the limit is allowed.
        program += _if_call(machine.number("setrlimit"), _refuse_values(0, (_RLIMIT_CORE,)))
        program += _if_call(machine.number("prlimit64"), _if_argument(1, _RLIMIT_CORE, _refuse_pointer(2)))
    netlink = _if_argument(0, _AF_NETLINK, _refuse_others(2, _NETLINK_PROTOCOLS))
    # As on a kernel that has no internet.
    internet = _refuse_values(0, _INTERNET, error=errno.EAFNOSUPPORT)
    families = _refuse_others(0, (_AF_UNIX, _AF_NETLINK))
    program += _if_call(machine.number("socket"), [*internet, *netlink, *families])
    program += _if_call(machine.number("socketpair"), _refuse_others(0, (_AF_UNIX,)))
    options = (*_SOCKET_FILTERS, *_SOCKET_SIZES)
    program += _if_call(machine.number("setsockopt"), _if_argument(1, _SOL_SOCKET, _refuse_values(2, options)))
    return [*program, (_RETURN, 0, 0, _ALLOW)]


def _refuse(error: int) -> _Instruction:
    return (_RETURN, 0, 0, _ERROR | error)


def _load(argument: int) -> _Instruction:
    """Loads the lower half of an argument; all that are looked at are int to the kernel, or have no flag above."""
    return (_LOAD, 0, 0, _ARGUMENTS + 8 * argument)


def _if_call(number: int, then: list[_Instruction]) -> list[_Instruction]:
    return [(_EQUAL, 0, len(then), number), *then]


def _if_argument(argument: int, value: int, then: list[_Instruction]) -> list[_Instruction]:
    return [_load(argument), (_EQUAL, 0, len(then), value), *then, _RELOAD]


def _refuse_bits(argument: int, bits: int) -> list[_Instruction]:
    return [_load(argument), (_ANY_BIT, 0, 1, bits), _refuse(errno.EPERM), _RELOAD]


def _refuse_threads_with_own_files() -> list[_Instruction]:
    return [_load(0), (_ANY_BIT, 0, 2, _THREAD), (_ANY_BIT, 1, 0, _SHARING_FILES), _refuse(errno.EPERM), _RELOAD]


def _refuse_values(argument: int, values: Iterable[int], *, error: int = errno.EPERM) -> list[_Instruction]:
    tests = [instruction for value in values for instruction in ((_EQUAL, 0, 1, value), _refuse(error))]
    return [_load(argument), *tests, _RELOAD]


def _refuse_newer_options() -> list[_Instruction]:
    """Refuses options of prctl(2) as an older kernel does."""
    # Both are larger than the newest.
    apart = [(_EQUAL, len(_OPTIONS_APART) - position + 1, 0, value) for position, value in enumerate(_OPTIONS_APART)]
    return [_load(0), *apart, (_GREATER, 0, 1, _NEWEST_OPTION), _refuse(errno.EINVAL), _RELOAD]


def _refuse_pointer(argument: int) -> list[_Instruction]:
    """Refuses whatever is not NULL, of which both halves are zero."""
    tests = [
        ((_LOAD, 0, 0, _ARGUMENTS + 8 * argument + half), (_EQUAL, 1, 0, 0), _refuse(errno.EPERM)) for half in (0, 4)
    ]
    return [*(instruction for test in tests for instruction in test), _RELOAD]


def _refuse_others(argument: int, values: tuple[int, ...]) -> list[_Instruction]:
    tests = [(_EQUAL, len(values) - position, 0, value) for position, value in enumerate(values)]
    return [_load(argument), *tests, _refuse(errno.EPERM), _RELOAD]
