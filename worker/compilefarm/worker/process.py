"""One child process from start to end, and nothing left of it afterwards."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from compilefarm.v1.child_pb2 import ChildMessage, ChildReady, ChildTask
from compilefarm.worker.frames import BrokenPipeOfMessages, MessageTooLarge, pack_frame, read_frame_async
from compilefarm.worker.launch import Launched, launch
from compilefarm.worker.sandbox import Sandbox
from compilefarm.worker.scratch import ScratchFolder

_LOG_TAIL_BYTES = 16 * 1024
_READ_BYTES = 64 * 1024
# A process that left the group of its child is not waited for any longer.
_LINGER_SECONDS = 5.0
# What is printed by a process that ends itself because it has no memory left: libstdc++, LLVM.
_WORDS_OF_MEMORY = ("std::bad_alloc", "LLVM ERROR: out of memory")


class ChildDied(Exception):
    """The process ended without an answer; the message holds how, and the end of what it printed."""


class ChildNotStarted(ChildDied):
    """No child could be made ready; the message holds why."""


class ChildOutOfMemory(ChildDied):
    """It ended itself because it had no memory left."""


class ChildSaidTooMuch(ChildDied):
    """It was about to return more than it may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSettings:
    """How children are started.

    Attributes:
        command: program and arguments.
        environment: variables beside the few that are passed on.
        scratch_folder: where each child gets a private folder; None is the system's place for such.
        start_seconds: how long a child may take to be ready.
        output_bytes: how much a child may return in all.
        sandbox: what it is started in; None starts it as any other process.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str]
    scratch_folder: Path | None = None
    start_seconds: float = 180.0
    output_bytes: int = 1 << 30
    sandbox: Sandbox | None = None


class ChildProcess:
    """A running child. `start` makes one, `end` must be awaited in the end."""

    def __init__(self, launched: Launched, *, folder: ScratchFolder, settings: ChildSettings) -> None:
        self._launched = launched
        self._process = launched.process
        self._folder = folder
        self._settings = settings
        self._left_bytes = settings.output_bytes
        self._tail = bytearray()
        self._listener = asyncio.create_task(self._listen_to_errors(), name=f"stderr of child {self.pid}")
        self._ending: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, settings: ChildSettings) -> ChildProcess:
        """Starts a child in a process group and a private folder of its own.

        Raises:
            OSError: the program cannot be started, or there is no room for its folder.
        """
        folder = ScratchFolder(settings.scratch_folder)
        try:
            launched = await launch(
                settings.command, folder=folder.path, additions=settings.environment, sandbox=settings.sandbox
            )
        except BaseException:
            folder.remove()
            raise
        return cls(launched, folder=folder, settings=settings)

    @property
    def pid(self) -> int:
        """Process number, which is also the number of its group."""
        return self._process.pid

    @property
    def folder(self) -> Path:
        """Its private folder."""
        return self._folder.path

    @property
    def has_ended(self) -> bool:
        """Whether it has ended by itself, or was killed by somebody else."""
        return self._process.returncode is not None

    @property
    def log_tail(self) -> str:
        """The end of what the child printed."""
        return self._tail.decode(errors="replace").strip()

    async def ready(self) -> ChildReady:
        """Waits until the child has imported everything.

        Raises:
            ChildDied: it ended first, said something else, or took too long.
        """
        try:
            async with asyncio.timeout(self._settings.start_seconds):
                message = await self._next()
        except TimeoutError as error:
            raise ChildDied(f"not ready after {self._settings.start_seconds:.0f} s\n{self.log_tail}") from error
        if message.WhichOneof("message") != "ready":
            raise ChildDied(f"it said {message.WhichOneof('message')} before it was ready")
        return message.ready

    async def messages(self, task: ChildTask) -> AsyncIterator[ChildMessage]:
        """Gives the child its task and yields what it says until it closes its end.

        Raises:
            ChildDied: it ended within a message.
        """
        stdin = self._process.stdin
        assert stdin is not None
        # A child that dies early is noticed by its missing answer.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            stdin.write(pack_frame(task))
            await stdin.drain()
            stdin.close()
        while True:
            yield await self._next()

    async def end(self) -> None:
        """Kills the child and everything it started, waits for it, and removes its folder.

        Several may await it, and a cancelled one leaves nothing undone.
        """
        if self._ending is None:
            self._ending = asyncio.create_task(self._end(), name=f"end of child {self._process.pid}")
        await asyncio.shield(self._ending)

    async def _end(self) -> None:
        self._launched.kill()
        # The last of what it started has ended when nobody can print any more.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_SECONDS):
                await self._listener
        await self._launched.close()
        await asyncio.to_thread(self._folder.remove)

    async def _next(self) -> ChildMessage:
        stdout = self._process.stdout
        assert stdout is not None
        try:
            message = await read_frame_async(stdout, ChildMessage, largest_bytes=self._left_bytes)
        except MessageTooLarge as error:
            limit = self._settings.output_bytes
            raise ChildSaidTooMuch(f"what it returns is larger than {limit} bytes, the limit of this farm") from error
        except BrokenPipeOfMessages as error:
            raise ChildDied(f"{error}\n{self.log_tail}") from error
        if message is None:
            raise await self._cause_of_death()
        self._left_bytes -= message.ByteSize()
        return message

    async def _cause_of_death(self) -> ChildDied:
        code = await self._process.wait()
        await asyncio.gather(self._listener, return_exceptions=True)
        cause = f"it {self._launched.words_of(code)}\n{self.log_tail}".strip()
        is_out_of_memory = any(words in self.log_tail for words in _WORDS_OF_MEMORY)
        return ChildOutOfMemory(cause) if is_out_of_memory else ChildDied(cause)

    async def _listen_to_errors(self) -> None:
        stderr = self._process.stderr
        assert stderr is not None
        while content := await stderr.read(_READ_BYTES):
            self._tail += content
            del self._tail[:-_LOG_TAIL_BYTES]
