"""The supervisor's end of a fork server, which forks children that have imported everything; in a sandbox or not."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process, SubprocessStreamProtocol
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, TypeVar

from compilefarm.worker.child_variables import child_variables
from compilefarm.worker.control_groups import ControlGroup
from compilefarm.worker.descendants import descendants_of
from compilefarm.worker.interpreters import copy_in_memory
from compilefarm.worker.sandbox import FOLDER, Sandbox
from compilefarm.worker.scratch import ScratchFolder
from compilefarm.worker.seccomp import open_filter

_PIPE_BYTES = 64 * 1024
_TAIL_BYTES = 16 * 1024
# A process that was killed ends at once, unless the kernel has it wait for a device.
_LINGER_SECONDS = 5.0

_T = TypeVar("_T")


class ForkServerDied(Exception):
    """No fork server is left to fork; the message has the reason, and the end of what it printed."""


class ForkedChild:
    """A running child and its pipes. `kill` and then `close` end it.

    Attributes:
        pid: number of the process, and of its group. In a sandbox it is another process there that does the work, in a
            group of its own.
        stdin, stdout, stderr: its pipes.
    """

    def __init__(self, pid: int, *, pipes: _Pipes, idle_sandbox: _IdleSandbox | None) -> None:
        self.pid = pid
        self.stdin = pipes.stdin
        self.stdout = pipes.stdout
        self.stderr = pipes.stderr
        self._pipes = pipes
        self._idle_sandbox = idle_sandbox
        self._end = asyncio.create_task(_code(pipes.status), name=f"end of process {pid}")

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self._end.done()

    def kill(self) -> None:
        """Kills the child and everything that it started; without a sandbox, those still in its process group."""
        if self._idle_sandbox is not None:
            # The one outside waits for the one inside; without it, nobody would, and bubblewrap could not end.
            self._idle_sandbox.kill()
            return
        # It may not be at the head of its group yet.
        if not self.has_ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def pids(self) -> set[int]:
        """Returns the process numbers of the child and its descendants, as seen from this process."""
        heads = {self.pid} if self._idle_sandbox is None else {self.pid, self._idle_sandbox.pid}
        return heads | descendants_of(heads)

    async def wait(self) -> int:
        """Waits for the end; returns the exit status, or the negative number of the signal that killed the child."""
        return await asyncio.shield(self._end)

    async def close(self) -> None:
        """Waits for the end of a child that was killed, and closes its pipes. To be awaited once."""
        await asyncio.wait([self._end], timeout=_LINGER_SECONDS)
        self._end.cancel()
        await self._pipes.close()
        if self._idle_sandbox is not None:
            await self._idle_sandbox.close()


class ForkServer:
    """A process that becomes children. It is started with the first of them, and again if it has ended.

    Args:
        command: program and arguments; it has to call compilefarm.worker.forks.wait_to_be_forked.
        environment: variables of it and of children beside the few that are passed on.
        answer_seconds: how long it may take to answer, once it has forked a child. It may have been stopped.
    """

    def __init__(self, command: Sequence[str], *, environment: Mapping[str, str], answer_seconds: float = 20.0) -> None:
        self._command = command
        self._answer_seconds = answer_seconds
        self._environment = environment
        self._running: _Running | None = None
        self._starting = asyncio.Lock()

    @property
    def log_tail(self) -> str:
        """The end of what the fork server printed."""
        return "" if self._running is None else self._running.log_tail

    async def fork(
        self, *, folder: Path, variables: Mapping[str, str], sandbox: Sandbox | None, group: ControlGroup | None = None
    ) -> ForkedChild:
        """Starts a child in a session and group of its own.

        Args:
            folder: where it runs, and what it may write to.
            variables: of the child alone.
            sandbox: the sandbox of the child; None: none.
            group: the control group that the child joins; None: none.

        Raises:
            ForkServerDied: the fork server ended, or does not answer.
            OSError: the program cannot be started, or the sandbox cannot be made.
        """
        async with self._starting:
            if self._running is None or self._running.has_ended:
                await self.close()
                self._running = await _Running.start(self._command, environment=self._environment)
            running = self._running
        idle_sandbox = None if sandbox is None else await _IdleSandbox.open(sandbox, folder=folder)
        where = folder if sandbox is None else FOLDER
        try:
            async with asyncio.timeout(self._answer_seconds if running.has_forked else None):
                everything = child_variables(where, additions={**self._environment, **variables})
                return await running.fork(where, variables=everything, idle_sandbox=idle_sandbox, group=group)
        except BaseException as error:
            if idle_sandbox is not None:
                idle_sandbox.kill()
                await idle_sandbox.close()
            if isinstance(error, TimeoutError):
                await self.end_if_silent()
                raise ForkServerDied(f"it gave no answer for {self._answer_seconds:.0f} s and was ended") from error
            raise

    async def end_if_silent(self) -> None:
        """Ends a fork server that does not answer; the next child gets another one."""
        if self._running is not None and self._running.is_silent:
            await self.close()

    async def close(self) -> None:
        """Ends the fork server and all children that are left."""
        running, self._running = self._running, None
        if running is not None:
            await running.close()


class _Pipes:
    """The pipes between this process and a child.

    Attributes:
        stdin, stdout, stderr, status: the ends of this process.
        child_ends: the ends of the child, as long as they are open here.
    """

    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader
    stderr: asyncio.StreamReader
    status: asyncio.StreamReader

    def __init__(self) -> None:
        self._transports: list[asyncio.BaseTransport] = []
        self.child_ends: list[int] = []

    @classmethod
    async def open(cls) -> _Pipes:
        pipes = cls()
        try:
            pipes.stdin = await pipes._writer()
            pipes.stdout, pipes.stderr, pipes.status = [await pipes._reader() for _ in range(3)]
        except BaseException:
            await pipes.close()
            raise
        return pipes

    def close_child_ends(self) -> None:
        while self.child_ends:
            os.close(self.child_ends.pop())

    async def close(self) -> None:
        self.close_child_ends()
        for transport in self._transports:
            transport.close()
        # asyncio closes the pipes in its next turn.
        await asyncio.sleep(0)

    async def _writer(self) -> asyncio.StreamWriter:
        reading, writing = os.pipe()
        self.child_ends.append(reading)
        # As asyncio.open_connection: the protocol knows when there is room in the pipe.
        transport, protocol = await _loop().connect_write_pipe(
            _protocol_of(asyncio.StreamReader()), FileIO(writing, "w")
        )
        self._transports.append(transport)
        return asyncio.StreamWriter(transport, protocol, None, _loop())

    async def _reader(self) -> asyncio.StreamReader:
        reading, writing = os.pipe()
        self.child_ends.append(writing)
        stream = asyncio.StreamReader(limit=_PIPE_BYTES)
        self._transports.append((await _loop().connect_read_pipe(_protocol_of(stream), FileIO(reading)))[0])
        return stream


class _Running:
    """A running fork server."""

    def __init__(self, process: Process, *, requests: socket.socket, folder: ScratchFolder) -> None:
        self._process = process
        self._requests = requests
        self._folder = folder
        self._is_closed = False
        # Whether it has forked a child, which it does at once from then on.
        self.has_forked = False
        # Somebody gave up waiting for its answer, and nobody had one since.
        self.is_silent = False
        self._tail = bytearray()
        self._listener = asyncio.create_task(self._listen(), name=f"output of fork server {process.pid}")

    @classmethod
    async def start(cls, command: Sequence[str], *, environment: Mapping[str, str]) -> _Running:
        executable = await _uncancelled(asyncio.to_thread(copy_in_memory, command[0]), undo=_close_copy)
        folder = ScratchFolder()
        # It keeps the bounds of messages.
        ours, server_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            process = await _uncancelled(
                asyncio.create_subprocess_exec(
                    *command,
                    executable=None if executable is None else f"/proc/{os.getpid()}/fd/{executable}",
                    stdin=server_end.fileno(),
                    stdout=PIPE,
                    stderr=STDOUT,
                    env=child_variables(folder.path, additions=environment),
                    cwd=folder.path,
                    start_new_session=True,
                ),
                undo=_end_process,
            )
        except BaseException:
            ours.close()
            folder.remove()
            raise
        finally:
            server_end.close()
            await _close_copy(executable)
        return cls(process, requests=ours, folder=folder)

    @property
    def has_ended(self) -> bool:
        return self._process.returncode is not None

    @property
    def log_tail(self) -> str:
        return self._tail.decode(errors="replace").strip()

    async def fork(
        self,
        folder: Path,
        *,
        variables: Mapping[str, str],
        idle_sandbox: _IdleSandbox | None,
        group: ControlGroup | None,
    ) -> ForkedChild:
        request = {
            "folder": str(folder),
            "variables": dict(variables),
            "sandbox": None if idle_sandbox is None else idle_sandbox.first_pid,
            "group": None if group is None else str(group.path),
        }
        pipes = await _Pipes.open()
        try:
            passed_on = pipes.child_ends if idle_sandbox is None else [*pipes.child_ends, idle_sandbox.first]
            socket.send_fds(self._requests, [json.dumps(request).encode()], passed_on)
            pipes.close_child_ends()
            if not (told := await pipes.status.readline()):
                raise await self._died()
            message = json.loads(told)
            self.is_silent = False
            self.has_forked = True
            if "error" in message:
                raise OSError(message["error"])
        except BaseException as error:
            self.is_silent |= isinstance(error, asyncio.CancelledError)
            # A child that nobody wants to hear of is killed by the fork server; one that was told of finds its pipes
            # closed.
            await pipes.close()
            if isinstance(error, BrokenPipeError | ConnectionResetError):
                raise await self._died() from error
            raise
        return ForkedChild(message["pid"], pipes=pipes, idle_sandbox=idle_sandbox)

    async def close(self) -> None:
        self._is_closed = True
        # Nobody can ask for a child any more, whereupon it ends what children left behind, and itself.
        self._requests.close()
        if self.has_forked:
            await self._end_in_order()
        await _end_process(self._process)
        await self._listener
        await asyncio.to_thread(self._folder.remove)

    async def _end_in_order(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            # A child without a sandbox can stop it.
            self._process.send_signal(signal.SIGCONT)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_SECONDS):
                await self._process.wait()

    async def _died(self) -> ForkServerDied:
        code = await self._process.wait()
        await self._listener
        cause = "was ended, since it gave no answer" if self._is_closed else words_of(code)
        return ForkServerDied(f"it {cause}\n{self.log_tail}".strip())

    async def _listen(self) -> None:
        output = self._process.stdout
        assert output is not None
        while content := await output.read(_PIPE_BYTES):
            self._tail += content
            del self._tail[:-_TAIL_BYTES]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Started:
    """A running bubblewrap, and the pipes that asyncio's Process does not expose."""

    process: Process
    transport: asyncio.SubprocessTransport

    def close_pipes(self) -> None:
        """asyncio waits for the end of each pipe before it says that the process has ended."""
        for number in (1, 2):
            pipe = self.transport.get_pipe_transport(number)
            assert pipe is not None
            pipe.close()

    async def end(self) -> None:
        self.close_pipes()
        await _end_process(self.process)


async def _start(command: Sequence[str], *, folder: Path, passed_on: Sequence[int]) -> _Started:
    loop = _loop()
    # As asyncio.create_subprocess_exec, which keeps the transport to itself.
    transport, protocol = await loop.subprocess_exec(
        lambda: SubprocessStreamProtocol(limit=_PIPE_BYTES, loop=loop),
        *command,
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
        env=child_variables(FOLDER),
        cwd=folder,
        start_new_session=True,
        pass_fds=passed_on,
    )
    return _Started(process=Process(transport, protocol, loop), transport=transport)


class _IdleSandbox:
    """A sandbox in which one idle process runs, so that a child can join its namespaces.

    Attributes:
        first_pid: number of the first process inside.
        first: a handle (pidfd_open(2)) of that process. All others inside end with it.
    """

    def __init__(self, started: _Started, *, first_pid: int, first: int) -> None:
        self._started = started
        self.first_pid = first_pid
        self.first = first

    @classmethod
    async def open(cls, sandbox: Sandbox, *, folder: Path) -> _IdleSandbox:
        reading, writing = os.pipe()
        with FileIO(reading) as pipe:
            system_calls = open_filter()
            command = sandbox.idle_command(folder=folder, info=writing, system_calls=system_calls)
            try:
                started = await _uncancelled(
                    _start(command, folder=folder, passed_on=(writing, system_calls)), undo=_Started.end
                )
            finally:
                os.close(writing)
                os.close(system_calls)
            process = started.process
            assert process.stdout is not None
            assert process.stderr is not None
            try:
                told = await _read_all(pipe)
                if told and await process.stdout.read(1):
                    first_pid = json.loads(told)["child-pid"]
                    # Whoever is inside could fill them, and nobody reads any more.
                    started.close_pipes()
                    return cls(started, first_pid=first_pid, first=os.pidfd_open(first_pid))
                said = (await process.stderr.read()).decode(errors="replace").strip()
                raise OSError(f"{sandbox.program} {words_of(await process.wait())}\n{said}")
            except BaseException:
                await started.end()
                raise

    @property
    def pid(self) -> int:
        """The process number of bubblewrap, the ancestor of all processes inside."""
        return self._started.process.pid

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            # bubblewrap outlives all that runs inside: nothing is left there when it has ended.
            signal.pidfd_send_signal(self.first, signal.SIGKILL)

    async def close(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_SECONDS):
                await self._started.process.wait()
        self._started.transport.close()
        os.close(self.first)


_HINTS: Mapping[int, str] = {
    signal.SIGKILL: " (as the kernel does when memory runs out)",
    signal.SIGPROF: " (it computed for too long without an end while the graph was decoded)",
}


def words_of(code: int) -> str:
    """Says in words how a process ended."""
    if code >= 0:
        return f"ended with status {code}"
    return f"was killed by {signal.Signals(-code).name}{_HINTS.get(-code, '')}"


async def _uncancelled(starting: Coroutine[Any, Any, _T], *, undo: Callable[[_T], Awaitable[None]]) -> _T:
    """Awaits a start that must not be interrupted halfway: when cancelled, it is completed first and then undone."""
    task = asyncio.create_task(starting)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if task.exception() is None:
            await undo(task.result())
        raise


async def _close_copy(copy: int | None) -> None:
    if copy is not None:
        os.close(copy)


async def _end_process(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


async def _code(status: asyncio.StreamReader) -> int:
    told = await status.readline()
    # Without its fork server a child is killed as well.
    return json.loads(told)["code"] if told else -signal.SIGKILL


def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


def _protocol_of(stream: asyncio.StreamReader) -> Callable[[], asyncio.StreamReaderProtocol]:
    return lambda: asyncio.StreamReaderProtocol(stream)


async def _read_all(pipe: FileIO) -> bytes:
    reader = asyncio.StreamReader()
    transport, _ = await _loop().connect_read_pipe(_protocol_of(reader), pipe)
    try:
        return await reader.read()
    finally:
        transport.close()
