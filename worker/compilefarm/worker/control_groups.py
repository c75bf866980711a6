"""A control group for each child (cgroups(7), version 2): the kernel bounds what its processes take together."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
# By what the kernel calls a hierarchy: where it is mounted, and which file has the limit; first that of version 2.
_MEMORY_FILES = {"": ("", "memory.max"), "memory": ("memory", "memory.limit_in_bytes")}
_LIMIT_SECONDS = 5.0
_POLL_SECONDS = 0.01
_numbers = itertools.count(1)


class ControlGroupsUnavailable(RuntimeError):
    """The folder cannot be used; the message says why, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlGroups:
    """A control group in which this process may create others.

    Attributes:
        folder: the folder of the group. No process but this farm runs directly in it.
        memory_bytes: how much memory a child may take beside what it shares with its fork server; None: any.
        most_tasks: how many processes and threads it may be; None: any number.
    """

    folder: Path
    memory_bytes: int | None = None
    most_tasks: int | None = None

    def check(self) -> None:
        """Makes a group and removes it. If this process runs in the folder itself, all that does is moved into a group
        below: none with processes of its own may share out controllers (cgroups(7), no internal processes).

        Raises:
            ControlGroupsUnavailable: that is not possible.
        """
        try:
            self._move_out()
            (self.folder / "cgroup.subtree_control").write_text(" ".join(self._controllers()))
            self.make().check()
        except OSError as error:
            raise ControlGroupsUnavailable(
                f"--control-group {self.folder} cannot be used: {error}. It has to be a group of version 2 in which "
                "nothing else runs, that belongs to this user as the one does in which the farm runs, and has the "
                "controllers memory and pids (systemd: Delegate=yes, and the group of the service itself)"
            ) from error

    def _controllers(self) -> Iterator[str]:
        yield from ("+memory", "+pids")
        # Processors are shared among the groups then, whatever number of processes is in each.
        if "cpu" in (self.folder / "cgroup.controllers").read_text().split():
            yield "+cpu"

    def _move_out(self) -> None:
        if str(os.getpid()) not in _processes_in(self.folder):
            return
        below = self.folder / "compilefarm"
        below.mkdir(exist_ok=True)
        # Some may fork meanwhile.
        while pids := _processes_in(self.folder):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    (below / "cgroup.procs").write_text(pid)

    def make(self) -> ControlGroup:
        """A new group.

        Raises:
            OSError: it cannot be made.
        """
        group = ControlGroup(self.folder / f"compilefarm-{os.getpid()}-{next(_numbers)}")
        group.path.mkdir()
        try:
            if self.memory_bytes is not None:
                group.set("memory.max", str(self.memory_bytes))
                # All of it ends, and not whichever process the kernel picks.
                group.set("memory.oom.group", "1")
                if (group.path / "memory.swap.max").exists():
                    group.set("memory.swap.max", "0")
            if self.most_tasks is not None:
                group.set("pids.max", str(self.most_tasks))
        except OSError:
            group.path.rmdir()
            raise
        return group


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """The group of one child.

    Attributes:
        path: its folder.
    """

    path: Path

    def set(self, name: str, value: str) -> None:
        (self.path / name).write_text(value)

    def check(self) -> None:
        """Removes the group, if its processes could be killed.

        Raises:
            OSError: groups cannot be killed: the kernel is older than 5.14.
        """
        can_be_ended = (self.path / "cgroup.kill").exists()
        self.path.rmdir()
        if not can_be_ended:
            raise FileNotFoundError(errno.ENOENT, "Linux before 5.14 has no cgroup.kill")

    @property
    def ran_out_of_memory(self) -> bool:
        """Whether the kernel killed a process in the group because of its memory limit."""
        with contextlib.suppress(FileNotFoundError):
            events = dict(line.split() for line in (self.path / "memory.events").read_text().splitlines())
            return int(events["oom_kill"]) > 0
        return False

    def kill(self) -> None:
        """Kills all processes in the group, new ones included."""
        self.set("cgroup.kill", "1")

    async def remove(self) -> None:
        """Kills all processes in the group, and removes it.

        Raises:
            TimeoutError: something in it does not end.
        """
        self.kill()
        async with asyncio.timeout(_LIMIT_SECONDS):
            # The kernel tells of it by poll(2), for which asyncio has no room.
            while "populated 1" in (self.path / "cgroup.events").read_text():  # noqa: ASYNC110
                await asyncio.sleep(_POLL_SECONDS)
        self.path.rmdir()


def _processes_in(group: Path) -> list[str]:
    # Those of another namespace of processes have no number here.
    return [pid for pid in (group / "cgroup.procs").read_text().split() if pid != "0"]


def memory_limits(*, root: Path = _ROOT, told: Path = Path("/proc/self/cgroup")) -> Iterator[int]:
    """Yields the memory limits of the control groups of this process, of both versions, in bytes.

    Args:
        root: where control groups are mounted.
        told: where the kernel says in which groups this process is (cgroups(7)).
    """
    for line in told.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers in _MEMORY_FILES:
            mounted, name = _MEMORY_FILES[controllers]
            group = Path(path.lstrip("/"))
            for each in (group, *group.parents):
                # Without a limit it says "max". The first of all has no such file.
                with contextlib.suppress(OSError, ValueError):
                    yield int((root / mounted / each / name).read_text())


def enter(group: Path) -> None:
    """Moves this process into a group; what it starts from now on will be there, too."""
    (group / "cgroup.procs").write_text("0")
