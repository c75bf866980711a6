"""Starts processes, in a sandbox or not, so that nothing is left of them when they are ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from asyncio.subprocess import PIPE, Process, SubprocessStreamProtocol
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from compilefarm.worker.sandbox import FOLDER, Sandbox
from compilefarm.worker.surroundings import surroundings

_PIPE_BYTES = 64 * 1024
# bubblewrap ends with this and the number of the signal by which its command was killed.
_KILLED = 128


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Launched:
    """A process that was started, in a group of its own.

    Attributes:
        process: it; where there is a sandbox, bubblewrap.
        transport: its pipes.
        first: a handle (pidfd_open(2)) of the first process inside the sandbox, with which all others in there end;
            None without a sandbox.
    """

    process: Process
    transport: asyncio.SubprocessTransport
    first: int | None = None

    def kill(self) -> None:
        """Kills it and everything it started; without a sandbox, what is still of its group."""
        with contextlib.suppress(ProcessLookupError):
            if self.first is not None:
                # bubblewrap outlives all that runs inside: nothing is left there when it has ended.
                signal.pidfd_send_signal(self.first, signal.SIGKILL)
            else:
                os.killpg(self.process.pid, signal.SIGKILL)

    async def close(self) -> None:
        """Waits until it has ended, once it was killed. To be awaited once, in the end."""
        # asyncio waits for the end of the pipes, too. It does not come where the reader has had enough, nor while a
        # process that left the group has one open.
        for number in (0, 1, 2):
            pipe = self.transport.get_pipe_transport(number)
            assert pipe is not None
            pipe.close()
        await self.process.wait()
        if self.first is not None:
            os.close(self.first)

    def words_of(self, code: int) -> str:
        """How the process ended, by its exit status."""
        is_wrapped = self.first is not None and code > _KILLED
        number = -code if code < 0 else code - _KILLED if is_wrapped else 0
        if number == 0:
            return f"ended with status {code}"
        hint = " (as the kernel does when memory runs out)" if number == signal.SIGKILL else ""
        return f"was killed by {signal.Signals(number).name}{hint}"


async def launch(
    command: Sequence[str], *, folder: Path, additions: Mapping[str, str], sandbox: Sandbox | None
) -> Launched:
    """Starts a process in a session and group of its own.

    Args:
        command: program and arguments.
        folder: where it runs, and what it may write to.
        additions: variables beside the few that are passed on.
        sandbox: what it is started in.

    Raises:
        OSError: the program cannot be started.
    """
    starting = asyncio.create_task(_start(command, folder=folder, additions=additions, sandbox=sandbox))
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        # A process that has half begun cannot be ended safely; a moment later it can.
        await asyncio.wait([starting])
        if starting.exception() is None:
            starting.result().kill()
            await starting.result().close()
        raise


async def _start(
    command: Sequence[str], *, folder: Path, additions: Mapping[str, str], sandbox: Sandbox | None
) -> Launched:
    if sandbox is None:
        return await _launch(command, folder=folder, variables=surroundings(folder, additions=additions))
    reading, writing = os.pipe()
    with FileIO(reading) as pipe:
        try:
            launched = await _launch(
                sandbox.around(command, folder=folder, info=writing),
                folder=folder,
                variables=surroundings(FOLDER, additions=additions),
                passed_on=(writing,),
            )
        finally:
            os.close(writing)
        # It comes at once, or bubblewrap ends.
        told = await _read_all(pipe)
    try:
        first = os.pidfd_open(json.loads(told)["child-pid"]) if told else None
    except ProcessLookupError:
        first = None
    return Launched(process=launched.process, transport=launched.transport, first=first)


async def _launch(
    command: Sequence[str], *, folder: Path, variables: Mapping[str, str], passed_on: Sequence[int] = ()
) -> Launched:
    loop = asyncio.get_running_loop()
    # As asyncio.create_subprocess_exec, which keeps the transport to itself.
    transport, protocol = await loop.subprocess_exec(
        lambda: SubprocessStreamProtocol(limit=_PIPE_BYTES, loop=loop),
        *command,
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        env=variables,
        cwd=folder,
        start_new_session=True,
        pass_fds=passed_on,
    )
    return Launched(process=Process(transport, protocol, loop), transport=transport)


async def _read_all(pipe: FileIO) -> bytes:
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    try:
        return await reader.read()
    finally:
        transport.close()
