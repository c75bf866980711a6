"""A control group of its own for each child (cgroups(7), version 2): the kernel bounds what all in it take together."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from dataclasses import dataclass
from pathlib import Path

_LIMIT_SECONDS = 5.0
_POLL_SECONDS = 0.01
_numbers = itertools.count(1)


class ControlGroupsUnavailable(RuntimeError):
    """The folder cannot be used; the message says why, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlGroups:
    """A group in which this process may make others.

    Attributes:
        folder: its folder. Nothing runs in it itself.
        memory_bytes: how much memory a child may take beside what it shares with its fork server; None is any.
        most_tasks: how many processes and threads it may be; None is any number.
    """

    folder: Path
    memory_bytes: int | None = None
    most_tasks: int | None = None

    def check(self) -> None:
        """Makes a group and removes it.

        Raises:
            ControlGroupsUnavailable: that is not possible.
        """
        try:
            (self.folder / "cgroup.subtree_control").write_text("+memory +pids")
            self.make().path.rmdir()
        except OSError as error:
            raise ControlGroupsUnavailable(
                f"--control-group {self.folder} cannot be used: {error}. It has to be a group of version 2 in which "
                "nothing runs, that belongs to this user as the one does in which the farm runs, and has the "
                "controllers memory and pids (systemd: Delegate=yes)"
            ) from error

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

    @property
    def ran_out_of_memory(self) -> bool:
        """Whether the kernel ended something in it because of its limit."""
        with contextlib.suppress(FileNotFoundError):
            events = dict(line.split() for line in (self.path / "memory.events").read_text().splitlines())
            return int(events["oom_kill"]) > 0
        return False

    def kill(self) -> None:
        """Ends all that runs in it, whatever it starts meanwhile."""
        self.set("cgroup.kill", "1")

    async def remove(self) -> None:
        """Ends all that runs in it, and removes it.

        Raises:
            TimeoutError: something in it does not end.
        """
        self.kill()
        async with asyncio.timeout(_LIMIT_SECONDS):
            # The kernel tells of it by poll(2), for which asyncio has no room.
            while "populated 1" in (self.path / "cgroup.events").read_text():  # noqa: ASYNC110
                await asyncio.sleep(_POLL_SECONDS)
        self.path.rmdir()


def enter(group: Path) -> None:
    """Moves this process into a group; what it starts from now on will be there, too."""
    (group / "cgroup.procs").write_text("0")
