"""The filter of system calls, interpreted as the kernel does it (bpf(4), seccomp(2)), for each architecture."""

from __future__ import annotations

import errno
import re
import struct
from pathlib import Path

import pytest

from compilefarm.worker.seccomp import MACHINES, UnknownMachine, filter_program
from compilefarm.worker.system_calls import EXAMINED, NEWEST, REFUSED

ALLOWED = 0x7FFF0000
_I386 = 0x40000003
# Numbers that both need, from the same tables of the kernel: read, openat, mmap, execve, futex, ppoll.
_NEEDED = {"x86_64": (0, 257, 9, 59, 202, 271), "aarch64": (63, 56, 222, 221, 98, 73)}
_HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}

on_each_machine = pytest.mark.parametrize("machine", list(MACHINES))


def verdict(machine: str, number: int, *arguments: int, audit: int | None = None) -> int | None:
    """The error that a call fails with; None if it is allowed."""
    words = [value % 2**64 for value in (*arguments, *[0] * (6 - len(arguments)))]
    data = struct.pack("<IIQ6Q", number, MACHINES[machine].audit if audit is None else audit, 0, *words)
    returned = _interpret(filter_program(machine), data)
    if returned == ALLOWED:
        return None
    assert returned >> 16 == 5, "no error, but something else"
    return returned & 0xFFFF


def _interpret(program: bytes, data: bytes) -> int:
    instructions = list(struct.iter_unpack("=HBBI", program))
    position, accumulator = 0, 0
    while True:
        code, if_true, if_false, value = instructions[position]
        position += 1
        match code:
            case 0x20:
                (accumulator,) = struct.unpack_from("<I", data, value)
            case 0x54:
                accumulator &= value
            case 0x06:
                return int(value)
            case _:
                holds = {
                    0x15: accumulator == value,
                    0x25: accumulator > value,
                    0x35: accumulator >= value,
                    0x45: accumulator & value != 0,
                }[code]
                position += if_true if holds else if_false


def number(machine: str, call: str) -> int:
    return EXAMINED[call][MACHINES[machine].column]


@on_each_machine
def test_calls_of_a_compile_are_allowed(machine: str) -> None:
    assert [verdict(machine, each) for each in _NEEDED[machine]] == [None] * 6


@on_each_machine
@pytest.mark.parametrize("call", REFUSED)
def test_calls_that_lead_out_are_refused(machine: str, call: str) -> None:
    each = REFUSED[call][MACHINES[machine].column]
    if each is not None:
        assert verdict(machine, each, 1, 2, 3) == errno.EPERM


@on_each_machine
@pytest.mark.parametrize(
    ("call", "arguments", "expected"),
    [
        ("clone", (0x01200011,), None),  # fork(2) of glibc
        ("clone", (0x003D0F00,), None),  # pthread_create(3)
        # The same without CLONE_FILES: what is open in such a thread nobody counts.
        ("clone", (0x003D0B00,), errno.EPERM),
        *[("clone", (0x11 | flag,), errno.EPERM) for flag in (1 << 17, 1 << 25, 1 << 26, 1 << 27, 1 << 28, 1 << 30)],
        ("clone3", (0, 88), errno.ENOSYS),
        *[("fcntl", (3, command), None) for command in (1, 2, 3, 4, 5, 6, 37, 1025, 1030, 1031, 1033, 1038)],
        *[("fcntl", (3, command), errno.EPERM) for command in (1024, 1026)],
        ("fcntl", (3, 0xABCD00000400), errno.EPERM),
        ("fcntl", (3, 1040), errno.EINVAL),
        ("ioctl", (0, 0x5401), None),
        ("ioctl", (0, 0x5412), errno.EPERM),
        ("ioctl", (0, 0xABCD00005412), errno.EPERM),  # The kernel looks at the lower half alone.
        ("ioctl", (0, 0x541C), errno.EPERM),
        ("ioctl", (0, 0xC020660B), None),  # FS_IOC_FIEMAP
        # BTRFS_IOC_SNAP_CREATE, BTRFS_IOC_SYNC, FICLONE, BTRFS_IOC_SNAP_CREATE_V2.
        *[("ioctl", (0, command), errno.ENOTTY) for command in (0x50009401, 0x9408, 0x40049409, 0x50009417)],
        # FS_IOC_SET_ENCRYPTION_POLICY, FS_IOC_ADD_ENCRYPTION_KEY, FS_IOC_REMOVE_ENCRYPTION_KEY, and for all users.
        *[("ioctl", (3, command), errno.ENOTTY) for command in (0x800C6613, 0xC0506617, 0xC0406618, 0xC0406619)],
        *[("madvise", (0x1000, 4096, advice), None) for advice in (0, 4, 8, 14, 16, 17, 22, 25)],
        *[("madvise", (0x1000, 4096, advice), errno.EINVAL) for advice in (20, 21, 0xABCD00000015)],
        ("personality", (0xFFFFFFFF,), None),
        ("personality", (0,), None),
        ("personality", (0x0040000,), errno.EPERM),
        ("prctl", (15,), None),
        ("prctl", (22, 2), errno.EPERM),
        ("prctl", (62, 1), errno.EPERM),
        ("prctl", (4, 0), errno.EPERM),
        *[("prctl", (option,), None) for option in (77, 0x53564D41, 0x59616D61)],
        *[("prctl", (option, 1), errno.EINVAL) for option in (78, 79, 0x53564D42, 0xFFFFFFFF)],
        ("setrlimit", (7, 0x1000), None),
        ("setrlimit", (4, 0x1000), errno.EPERM),  # A limit on cores of 0 has a program started for one.
        ("prlimit64", (0, 7, 0x1000, 0), None),
        ("prlimit64", (0, 4, 0, 0x1000), None),  # It asks.
        ("prlimit64", (0, 4, 0x1000, 0), errno.EPERM),
        ("prlimit64", (1, 4, 0x100000000, 0), errno.EPERM),  # A pointer of which the lower half is zero.
        ("socket", (1, 1), None),
        *[("socket", (family, 1), errno.EAFNOSUPPORT) for family in (2, 10)],
        *[("socket", (family, 3), errno.EPERM) for family in (0, 3, 17, 38, 40, 44)],
        *[("socket", (16, 3, protocol), None) for protocol in (0, 15)],
        *[("socket", (16, 3, protocol), errno.EPERM) for protocol in (4, 9, 12, 16)],
        ("socketpair", (1, 1), None),
        *[("socketpair", (family, 1), errno.EPERM) for family in (2, 10, 30)],
        ("setsockopt", (3, 1, 2), None),
        *[("setsockopt", (3, 1, option), errno.EPERM) for option in (26, 50, 51, 52)],
        *[("setsockopt", (3, 1, option), errno.EPERM) for option in (7, 8)],  # How much a socket may hold.
        ("setsockopt", (3, 6, 26), None),  # An option of TCP
    ],
)
def test_what_a_call_is_for_decides(machine: str, call: str, arguments: tuple[int, ...], expected: int | None) -> None:
    assert verdict(machine, number(machine, call), *arguments) == expected


@on_each_machine
def test_other_interfaces_are_refused(machine: str) -> None:
    getpid = {"x86_64": 39, "aarch64": 172}[machine]
    assert verdict(machine, getpid) is None
    assert verdict(machine, getpid, audit=_I386) == errno.EPERM
    others = [each.audit for name, each in MACHINES.items() if name != machine]
    assert [verdict(machine, getpid, audit=audit) for audit in others] == [errno.EPERM]


def test_programs_that_count_in_32_bits_are_refused() -> None:
    assert verdict("x86_64", 0x40000000 | 39) == errno.EPERM
    assert verdict("x86_64", 0xFFFFFFFF) == errno.EPERM


@on_each_machine
def test_calls_that_nobody_looked_at_are_those_of_an_older_kernel(machine: str) -> None:
    assert verdict(machine, NEWEST) is None
    assert verdict(machine, NEWEST + 1) == errno.ENOSYS


def test_another_architecture_is_told() -> None:
    with pytest.raises(UnknownMachine, match="no filter of system calls is known for s390x"):
        filter_program("s390x")


@on_each_machine
def test_numbers_are_those_of_the_kernel(machine: str) -> None:
    header = _HEADERS[machine]
    if not header.exists():
        pytest.skip(f"this machine has no {header}")
    told = dict(re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", header.read_text()))
    column = MACHINES[machine].column
    ours = {name: numbers[column] for name, numbers in {**REFUSED, **EXAMINED}.items() if name in told}
    assert ours == {name: int(told[name]) for name in ours}
    assert len(ours) > 60
