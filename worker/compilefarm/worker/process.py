"""The life of one child process, from start to end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from compilefarm.core.contents import Content
from compilefarm.v1.child_pb2 import ChildMessage, ChildReady, ChildTask, PingTask
from compilefarm.worker.consumption import (
    disk_bytes,
    file_count,
    find_hidden,
    memory_bytes,
    numbers_that_show,
    resident_bytes,
    task_count,
)
from compilefarm.worker.control_groups import ControlGroup, ControlGroups
from compilefarm.worker.fork_server import ForkedChild, ForkServer, ForkServerDied, words_of
from compilefarm.worker.frames import BrokenPipeOfMessages, MessageTooLarge, pack_frame, read_frame_async
from compilefarm.worker.pieces import pieces_of
from compilefarm.worker.sandbox import Sandbox
from compilefarm.worker.scratch import ScratchFolder

log = logging.getLogger(__name__)
T = TypeVar("T")

# What a message counts at least. Each costs the farm some work, and some are kept.
_MESSAGE_BYTES = 16 * 1024
_LOG_TAIL_BYTES = 16 * 1024
_READ_BYTES = 64 * 1024
# In so many looks, one after the other, some process of a child hides what it has.
_HIDDEN_LOOKS = 5
# How long a look may take by the clock. Processes can keep locks for which it waits (what reads /proc/PID/map_files
# waits for whoever maps memory), and take memory meanwhile. An honest child of 192 processes takes 4 s of a processor,
# and one that maps a hundred thousand places 12, after which it is known what they take.
_LOOK_SECONDS = 40.0
# A process that left the group of its child is not waited for any longer.
_LINGER_SECONDS = 5.0
# What is printed by a process that ends itself because it has no memory left: libstdc++, LLVM.
_WORDS_OF_MEMORY = ("std::bad_alloc", "LLVM ERROR: out of memory")


class ChildDied(Exception):
    """The process ended without an answer; the message says how, and has the end of what it printed."""


class ChildNotStarted(ChildDied):
    """No child could be made ready; the message says why."""


class ChildOutOfMemory(ChildDied):
    """The child ran out of memory, or was killed because it took more than its limit."""


class ChildOutOfDisk(ChildDied):
    """The child was killed because its files took more than their limit."""


class ChildSaidTooMuch(ChildDied):
    """The child was about to return more than its limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSettings:
    """Settings of children.

    Attributes:
        server: forks the children. Its owner closes it.
        variables: environment variables of children, beside those that the fork server has.
        scratch_folder: where each child gets a private folder; None: the system's folder for temporary files.
        start_seconds: how long a child may take to be ready; the first one, with what its fork server takes.
        answer_seconds: how long a child that waits for its task may take to say so.
        output_bytes: how much a child may return in all.
        memory_bytes: how much memory a child and its descendants may take together, beyond what they have when its
            task begins; None: any.
        disk_bytes: how much space their files may take; None: any.
        most_tasks: how many processes and threads they may be; None is any number.
        most_files: how many files they may have open together; None is any number.
        sample_seconds: how often these are measured, and whether a child that is not ready was stopped. In between,
            children may take more.
        groups: makes a control group for each child; None: children stay in that of the farm.
        sandbox: the sandbox of children; None: none.
    """

    server: ForkServer
    variables: Mapping[str, str] = field(default_factory=dict)
    scratch_folder: Path | None = None
    start_seconds: float = 180.0
    answer_seconds: float = 20.0
    output_bytes: int = 1 << 30
    memory_bytes: int | None = None
    disk_bytes: int | None = None
    most_tasks: int | None = None
    most_files: int | None = None
    sample_seconds: float = 1.0
    groups: ControlGroups | None = None
    sandbox: Sandbox | None = None


class ChildProcess:
    """A running child. `start` makes one, `end` must be awaited in the end."""

    def __init__(
        self, forked: ForkedChild, *, folder: ScratchFolder, settings: ChildSettings, group: ControlGroup | None
    ) -> None:
        self._forked = forked
        self._group = group
        self._folder = folder
        self._settings = settings
        self._left_bytes = settings.output_bytes
        self._tail = bytearray()
        self._listener = asyncio.create_task(self._listen_to_errors(), name=f"stderr of child {self.pid}")
        self._ending: asyncio.Task[None] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._is_watched = asyncio.Event()
        # Why it was ended, if it took more than it may.
        self._excess: ChildDied | None = None
        # In how many looks, one after the other, a process has hidden what it has: it may be another one each time.
        self._hidden_looks = 0
        # Those that did before there was a task: of bubblewrap.
        self._hidden_at_first: set[int] = set()
        # Of its own, since a child may have looks wait, and nobody else.
        self._looks = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"look at child {self.pid}")

    @classmethod
    async def start(cls, settings: ChildSettings) -> ChildProcess:
        """Starts a child in a process group and a private folder of its own.

        Raises:
            ChildDied: its fork server ended instead, or took too long.
            OSError: the program cannot be started, there is no room for its folder, or no sandbox.
        """
        server, folder, group = settings.server, ScratchFolder(settings.scratch_folder), None
        try:
            group = None if settings.groups is None else settings.groups.make()
            async with asyncio.timeout(settings.start_seconds):
                forked = await server.fork(
                    folder=folder.path, variables=settings.variables, sandbox=settings.sandbox, group=group
                )
        except BaseException as error:
            folder.remove()
            await _remove(group)
            if isinstance(error, ForkServerDied):
                raise ChildDied(str(error)) from error
            if isinstance(error, TimeoutError):
                said = server.log_tail
                await server.end_if_silent()
                raise ChildDied(f"not ready after {settings.start_seconds:.0f} s\n{said}") from error
            raise
        return cls(forked, folder=folder, settings=settings, group=group)

    @property
    def pid(self) -> int:
        """Process number, which is also the number of its group."""
        return self._forked.pid

    @property
    def folder(self) -> Path:
        """The private folder of the child."""
        return self._folder.path

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self._forked.has_ended

    @property
    def log_tail(self) -> str:
        """The end of what the child printed."""
        return self._tail.decode(errors="replace").strip()

    async def ready(self) -> ChildReady:
        """Waits until the child has imported everything.

        Raises:
            ChildDied: it ended first, said something else, was stopped, or took too long.
        """
        try:
            async with asyncio.timeout(self._settings.start_seconds):
                message = await self._next_unless_stopped()
        except TimeoutError as error:
            raise ChildDied(f"not ready after {self._settings.start_seconds:.0f} s\n{self.log_tail}") from error
        if message.WhichOneof("message") != "ready":
            raise ChildDied(f"it said {message.WhichOneof('message')} before it was ready")
        return message.ready

    async def _next_unless_stopped(self) -> ChildMessage:
        """The next message of a child that cannot be pinged yet."""
        waiting = asyncio.create_task(self._next(), name=f"first words of child {self.pid}")
        try:
            while not (await asyncio.wait({waiting}, timeout=self._settings.sample_seconds))[0]:
                if any(map(_is_stopped, self._forked.pids())):
                    raise ChildDied("it was stopped by a signal before it was ready")
            return await waiting
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

    async def answers(self) -> bool:
        """Pings the child; returns whether it answers. It may have been stopped by a signal."""
        try:
            async with asyncio.timeout(self._settings.answer_seconds):
                await self._give(ChildTask(ping=PingTask()))
                message = await self._next()
        except (TimeoutError, ChildDied):
            return False
        return message.WhichOneof("message") == "pong"

    async def messages(
        self, task: ChildTask, *, blobs: Mapping[str, Content] | None = None
    ) -> AsyncIterator[ChildMessage]:
        """Gives the child its task and yields its messages.

        Args:
            task: what it does.
            blobs: contents that it needs for that, by digest.

        Raises:
            ChildDied: it ended within a message.
        """
        self._watcher = asyncio.create_task(self._watch(), name=f"watch over child {self.pid}")
        # What it took before would not count.
        await self._is_watched.wait()
        for digest, content in (blobs or {}).items():
            for piece in pieces_of(digest, content):
                await self._give(ChildTask(blob=piece))
        await self._give(task)
        self._forked.stdin.close()
        while True:
            yield await self._next()

    async def end(self) -> None:
        """Kills the child and everything it started, waits for it, and removes its folder.

        Several may await it, and a cancelled one leaves nothing undone.
        """
        if self._ending is None:
            self._ending = asyncio.create_task(self._end(), name=f"end of child {self.pid}")
        await asyncio.shield(self._ending)

    async def _end(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
        self._forked.kill()
        # One that waits for a lock of the child goes on now.
        self._looks.shutdown(wait=False)
        # The last of what it started has ended when nobody can print any more.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_SECONDS):
                await self._listener
        await self._forked.close()
        await _remove(self._group)
        await asyncio.to_thread(self._folder.remove)

    async def _give(self, task: ChildTask) -> None:
        # A child that dies early is noticed by its missing answer.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._forked.stdin.write(pack_frame(task))
            await self._forked.stdin.drain()

    async def _next(self) -> ChildMessage:
        try:
            message = await read_frame_async(
                self._forked.stdout,
                ChildMessage,
                largest_bytes=self._left_bytes,
            )
        except MessageTooLarge as error:
            limit = self._settings.output_bytes
            raise ChildSaidTooMuch(
                f"what it returns is larger than {limit} bytes, or a message of it than a megabyte, limits of this "
                f"farm: {error}"
            ) from error
        except BrokenPipeOfMessages as error:
            if self._excess is not None:
                raise self._excess from error
            raise ChildDied(f"{error}\n{self.log_tail}") from error
        if message is None:
            raise await self._cause_of_death()
        self._left_bytes -= max(message.ByteSize(), _MESSAGE_BYTES)
        # Those that are there already would come one after the other, and nobody else's turn between them.
        await asyncio.sleep(0)
        return message

    async def _watch(self) -> None:
        """Kills the child when it exceeds a limit."""
        try:
            at_first = await self._look(self._look_at_first)
            self._is_watched.set()
            while self._excess is None:
                await asyncio.sleep(self._settings.sample_seconds)
                self._excess = await self._look(partial(self._find_excess, at_first))
        except TimeoutError:
            self._excess = ChildDied(f"what it takes cannot be seen: a look takes more than {_LOOK_SECONDS:g} s")
        except Exception as error:  # noqa: BLE001 - a child that nobody watches goes no further
            self._excess = ChildDied(f"what it takes cannot be seen: {error!r}")
        finally:
            self._is_watched.set()
        self._forked.kill()

    async def _look(self, look: Callable[[], T]) -> T:
        async with asyncio.timeout(_LOOK_SECONDS):
            return await asyncio.get_running_loop().run_in_executor(self._looks, look)

    def _look_at_first(self) -> int:
        pids = self._forked.pids()
        self._hidden_at_first = find_hidden(pids)
        return resident_bytes(numbers_that_show(pids))

    def _find_excess(self, memory_at_first: int) -> ChildDied | None:
        settings, pids = self._settings, self._forked.pids()
        self._hidden_looks = self._hidden_looks + 1 if find_hidden(pids - self._hidden_at_first) else 0
        if self._hidden_looks >= _HIDDEN_LOOKS:
            return ChildDied("one of its processes hides what it has: nobody may read its program")
        pids = numbers_that_show(pids)
        # Both first, since they decide how long the rest takes.
        if settings.most_tasks is not None and task_count(pids) > settings.most_tasks:
            return ChildDied(f"it became more than {settings.most_tasks} processes and threads")
        if settings.most_files is not None and file_count(pids, most=settings.most_files) > settings.most_files:
            return ChildDied(f"its processes opened more than {settings.most_files} files together")
        if settings.memory_bytes is not None:
            limit = memory_at_first + settings.memory_bytes
            if resident_bytes(pids) > limit and memory_bytes(pids, most=limit) > limit:
                return ChildOutOfMemory(f"its processes took more than {settings.memory_bytes} bytes together")
        if settings.disk_bytes is not None and disk_bytes(self.folder, pids) > settings.disk_bytes:
            return ChildOutOfDisk(f"its files took more than {settings.disk_bytes} bytes, the limit of this farm")
        return None

    async def _cause_of_death(self) -> ChildDied:
        code = await self._forked.wait()
        if self._excess is not None:
            return self._excess
        if self._group is not None and self._group.ran_out_of_memory:
            return ChildOutOfMemory("its processes took more than the control group of a compile has")
        await asyncio.gather(self._listener, return_exceptions=True)
        cause = f"it {words_of(code)}\n{self.log_tail}".strip()
        is_out_of_memory = any(words in self.log_tail for words in _WORDS_OF_MEMORY)
        return ChildOutOfMemory(cause) if is_out_of_memory else ChildDied(cause)

    async def _listen_to_errors(self) -> None:
        while content := await self._forked.stderr.read(_READ_BYTES):
            self._tail += content
            del self._tail[:-_LOG_TAIL_BYTES]


def _is_stopped(pid: int) -> bool:
    # Behind the name in parentheses (proc(5)). The process may end meanwhile.
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] == "T"
    return False


async def _remove(group: ControlGroup | None) -> None:
    if group is not None:
        try:
            await group.remove()
        except (OSError, TimeoutError) as error:
            # As a process that waits for a device, and cannot be ended.
            log.warning("the control group %s cannot be removed: %s", group.path, error)
