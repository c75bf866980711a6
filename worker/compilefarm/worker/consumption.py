"""Memory and disk space that the processes of a child use together, which limits of single processes do not bound.

Read from /proc (proc(5)), where private pages, pages that are shared, and files in memory stand apart. A page that
several processes have is counted once among them (Pss). What the kernel itself holds for processes it does not tell:
it is counted by what it may be at most. What the driver of a GPU has pinned is not counted.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Collection, Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import TypeVar

_KIB = 1024
# Of /proc/PID/status: pages of no file, of shared memory, swapped out. Shared ones count for each process.
_RESIDENT = ("RssAnon:", "RssShmem:", "VmSwap:")
# Of the same file: huge pages, and the tables of addresses, which may be many for few pages.
_FURTHER = ("HugetlbPages:", "VmPTE:")
# The same of /proc/PID/smaps_rollup, each as a share among those that have the page.
_PROPORTIONAL = ("Pss_Anon:", "Pss_Shmem:", "SwapPss:")
# What a file or a folder counts at least: file systems have room for so many, and it takes time to remove them.
_ENTRY_BYTES = 16 * 1024
# Each level of folders costs an open file while it is looked at.
_DEEPEST = 200
# What a socket or a pipe may hold that nobody has read: of each of eleven who wrote to one of datagrams wmem_default
# (socket(7), unix(7): max_dgram_qlen; pipe(7)). In a sandbox none can be made to hold more.
_SOCKET_BYTES = 11 * 208 * 1024
_PIPE_BYTES = 64 * 1024
# What the kernel holds for an open file, such as the text of one in /proc that is read; and for a folder that is
# read, the names that come next (28,000 of ext4 held 350 MB).
_OPEN_FILE_BYTES = 8 * 1024
_OPEN_FOLDER_BYTES = 32 * 1024
# What it holds for a thread; and for a place of memory, which is one of a process or a part of it with rights of its
# own: what it is, and of which processes it may have pages, of all that were forked one from the other, as long as
# these or others of them live (anon_vma_chain: 157 of them, of which some had 32,000 places, held 550 MB).
_TASK_BYTES = 32 * 1024
_PLACE_BYTES = 256
_ANCESTOR_BYTES = 64
# Of so many in a network they are counted: more than any limit on memory lets a child have.
_MOST_SOCKETS = 1024 * 1024
_FILE_IN_MEMORY = "/memfd:"
# What is mapped without having a name any more; shared memory without a file is called as the second.
_DELETED = b" (deleted)"
_SHARED = "/dev/zero"
# How much may be read of what processes have mapped. They decide how long it takes.
_MOST_MAPPED_BYTES = 64 * 1024 * 1024
# How long it may take to look, of a processor: while a million folders are looked at, memory is not. An honest compile
# may be 192 processes, of which each has 0.4 GB and takes 15 to 20 ms.
_MOST_LOOK_SECONDS = 5.0
# How many times the memory of this machine may be mapped where it is counted exactly: the kernel goes through all of
# it, 33 ms for each gigabyte.
_MOST_TIMES_MAPPED = 8

_T = TypeVar("_T")


def resident_bytes(pids: Collection[int]) -> int:
    """Returns the memory of some processes. Shared pages count once for each: fast, and never too little."""
    return sum(map(_resident, pids)) + _unnamed(pids)[0]


def memory_bytes(pids: Collection[int], *, most: int = 0) -> int:
    """Returns the memory of some processes, exactly if it is more than `most`. Takes milliseconds for each gigabyte.

    Raises:
        OSError: it takes too long.
    """
    resident = {pid: _resident(pid) for pid in pids}
    memory = sum(resident.values())
    if memory > _MOST_TIMES_MAPPED * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"):
        raise OSError(errno.E2BIG, "too much memory is mapped again and again")
    memory += _unnamed(pids)[0]
    # Of a hundred processes that compile kernels each takes 15 ms to go through, and they share most of what they have.
    for pid in _in_time(pids):
        if memory <= most:
            break
        memory += _memory_of(pid) - resident[pid]
    return memory


def disk_bytes(folder: Path, pids: Collection[int]) -> int:
    """Returns the disk space of a folder, and of deleted files that some processes have open.

    Raises:
        OSError: some of it cannot be seen: a folder is closed, or nested too deeply, or it takes too long.
    """
    with _opened(folder) as top:
        named = sum(max(_allocated(found), _ENTRY_BYTES) for found in _in_time(_entries_in(top)))
    return named + _unnamed(pids)[1]


def find_hidden(pids: Collection[int]) -> set[int]:
    """Those of some processes of which the kernel shows nothing of what they have: they run a program which their user
    may not read, and this is not the administrator (proc(5), ptrace(2)).
    """
    return {pid for pid in pids if _is_hidden(pid)}


def numbers_that_show(pids: Collection[int]) -> set[int]:
    """The numbers by which what some processes have is seen: of one whose first thread has ended before others that of
    another thread. Files in /proc are those of a thread, and show nothing of one that has ended.
    """
    return {_number_that_shows(pid) for pid in pids}


def task_count(pids: Collection[int]) -> int:
    """Returns the number of threads of some processes."""
    return sum(_first_of(Path("/proc", str(pid), "status"), "Threads:") for pid in pids)


def file_count(pids: Collection[int], *, most: int) -> int:
    """Open files of some processes. Once there are more than `most` it counts no further."""
    return sum(1 for _ in islice(_descriptors(pids), most + 1))


def _memory_of(pid: int) -> int:
    folder = Path("/proc", str(pid))
    # Another user's process may not be looked into that far; nothing can be read of one that has ended.
    found = _sum_of(folder / "smaps_rollup", _PROPORTIONAL)
    return _resident(pid) if found is None else found + (_sum_of(folder / "status", _FURTHER) or 0)


def _resident(pid: int) -> int:
    return _sum_of(Path("/proc", str(pid), "status"), (*_RESIDENT, *_FURTHER)) or 0


def _sum_of(path: Path, names: Collection[str]) -> int | None:
    """Returns the sum of some lines in bytes; None if the file cannot be read."""
    found = _numbers(path, names)
    return None if found is None else sum(found) * _KIB


def _first_of(path: Path, name: str) -> int:
    return next(iter(_numbers(path, (name,)) or ()), 0)


def _is_hidden(pid: int) -> bool:
    try:
        # First: one that is about to end has no program any more, and its folders are closed to all but root.
        os.readlink(f"/proc/{pid}/exe")
        os.scandir(f"/proc/{pid}/fd").close()
    except PermissionError:
        return True
    except (FileNotFoundError, ProcessLookupError):
        # It has ended, or is about to.
        return False
    return False


def _number_that_shows(pid: int) -> int:
    folder = Path("/proc", str(pid))
    if not _has_ended(folder):
        return pid
    try:
        threads = [int(thread) for thread in os.listdir(folder / "task")]
    except (FileNotFoundError, ProcessLookupError):
        return pid
    return next((thread for thread in threads if not _has_ended(folder / "task" / str(thread))), pid)


def _has_ended(folder: Path) -> bool:
    """Whether a thread has ended, and others or its parent keep it (proc(5))."""
    states = (field[1] for field in _fields(folder / "status") or () if len(field) > 1 and field[0] == "State:")
    return next(states, "") in ("Z", "X")


def _numbers(path: Path, names: Collection[str]) -> list[int] | None:
    """Returns the numbers of some lines; None if the file cannot be read, or its process has ended."""
    fields = _fields(path)
    return None if fields is None else [int(field[1]) for field in fields if field and field[0] in names]


def _fields(path: Path) -> list[list[str]] | None:
    try:
        # A process may call itself anything, also what is no text, or what Python takes for the end of a line.
        lines = path.read_bytes().decode(errors="replace").split("\n")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    return [line.split() for line in lines]


def _in_time(items: Iterable[_T]) -> Iterator[_T]:
    """Yields what is looked at.

    Raises:
        OSError: it takes too long.
    """
    until = time.thread_time() + _MOST_LOOK_SECONDS
    for item in items:
        if time.thread_time() > until:
            raise OSError(errno.ETIME, "there is more than can be looked at")
        yield item


def _unnamed(pids: Collection[int]) -> tuple[int, int]:
    """Returns the bytes of open and mapped files without a name, of sockets and pipes, and of what the kernel holds for
    all of these: in memory, and on a disk.
    """
    held = task_count(pids) * _TASK_BYTES
    in_memory: dict[tuple[int, int], int] = {}
    on_disk: dict[tuple[int, int], int] = {}
    sockets: set[tuple[int, int]] = set()
    opened = list(_open_files(pids))
    held += sum(_OPEN_FOLDER_BYTES if stat.S_ISDIR(found.st_mode) else _OPEN_FILE_BYTES for _, found in opened)
    maps = list(_maps_of(pids))
    places = sum(told.count(b"\n") for _, told in maps)
    held += places * (_PLACE_BYTES + _ANCESTOR_BYTES * len(pids))
    for link, found in chain(opened, _mapped_files(maps)):
        if stat.S_ISSOCK(found.st_mode):
            sockets.add((found.st_dev, found.st_ino))
        elif stat.S_ISFIFO(found.st_mode):
            in_memory[found.st_dev, found.st_ino] = _PIPE_BYTES
        elif stat.S_ISREG(found.st_mode) and found.st_nlink == 0:
            kind = in_memory if link.startswith((_FILE_IN_MEMORY, _SHARED)) else on_disk
            kind[found.st_dev, found.st_ino] = _allocated(found)
    of_sockets = max(len(sockets), _sockets_of_networks(pids)) * _SOCKET_BYTES
    return held + sum(in_memory.values()) + of_sockets, sum(on_disk.values())


def _sockets_of_networks(pids: Collection[int]) -> int:
    """Returns the number of UNIX sockets in networks that some processes have for themselves, as in a sandbox. Many of
    them may be nobody's open file: connections that wait to be accepted, thousands of them at one socket.
    """
    count, seen = 0, {os.stat("/proc/self/ns/net").st_ino}
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            if (network := os.stat(f"/proc/{pid}/ns/net").st_ino) in seen:
                continue
            seen.add(network)
            with Path("/proc", str(pid), "net", "unix").open("rb") as lines:
                # The first is the heading.
                count += sum(1 for _ in islice(lines, 1, _MOST_SOCKETS))
    return count


def _open_files(pids: Collection[int]) -> Iterator[tuple[str, os.stat_result]]:
    for entry in _in_time(_descriptors(pids)):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            yield os.readlink(entry.path), entry.stat()


def _maps_of(pids: Collection[int]) -> Iterator[tuple[int, bytes]]:
    """What processes have mapped, a place a line (proc(5)).

    Raises:
        OSError: so much is mapped that to look at it takes too long.
    """
    left = _MOST_MAPPED_BYTES
    for pid in _in_time(pids):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            with Path("/proc", str(pid), "maps").open("rb") as file:
                told = file.read(left + 1)
            left -= len(told)
            if left < 0:
                raise OSError(errno.E2BIG, "too many places of memory are mapped")
            yield pid, told


def _mapped_files(maps: Iterable[tuple[int, bytes]]) -> Iterator[tuple[str, os.stat_result]]:
    """Files without a name of which processes have something mapped, if it is only a page: that keeps all of them.

    Only the administrator is shown them (proc(5): CAP_CHECKPOINT_RESTORE).
    """
    for pid, told in maps:
        # What a file is called may hold what Python takes for the end of a line.
        for line in told.split(b"\n") if _DELETED in told else ():
            if line.endswith(_DELETED) and (mapped := _mapped_at(pid, line)) is not None:
                yield mapped


def _mapped_at(pid: int, line: bytes) -> tuple[str, os.stat_result] | None:
    # The folder has no zeros in front.
    first, last = (int(end, 16) for end in line.split(maxsplit=1)[0].split(b"-"))
    path = f"/proc/{pid}/map_files/{first:x}-{last:x}"
    try:
        return os.readlink(path), os.stat(path)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None


def _descriptors(pids: Collection[int]) -> Iterator[os.DirEntry[str]]:
    for pid in pids:
        # It may end meanwhile. Of bubblewrap nothing is to be seen, and it opens nothing; see `find_hidden` for others.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            yield from os.scandir(f"/proc/{pid}/fd")


def _entries_in(folder: int, *, depth: int = 0) -> Iterator[os.stat_result]:
    """Yields everything in an open folder, at any depth.

    Each folder is opened in the one where it was found: a child may put a link in its place meanwhile, or in the place
    of one around it. To follow that would be to look through the whole machine, and at nothing else for minutes.

    Raises:
        OSError: some of it cannot be seen.
    """
    if depth > _DEEPEST:
        raise OSError(errno.ENAMETOOLONG, f"folders are nested more than {_DEEPEST} levels deep")
    folders = []
    with os.scandir(folder) as entries:
        for entry in entries:
            # What lies there may go meanwhile, or become something else.
            with contextlib.suppress(FileNotFoundError):
                yield entry.stat(follow_symlinks=False)
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.name)
    for name in folders:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), _opened(name, within=folder) as inner:
            yield from _entries_in(inner, depth=depth + 1)


@contextlib.contextmanager
def _opened(name: str | Path, *, within: int | None = None) -> Iterator[int]:
    # Of a link it says that it is no folder.
    descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=within)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _allocated(found: os.stat_result) -> int:
    # In units of 512 bytes, whatever a file system has (stat(2)).
    return found.st_blocks * 512
