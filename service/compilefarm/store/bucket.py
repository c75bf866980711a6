"""A bucket, as a process of its own reads and writes it (`bucket_process`)."""

from __future__ import annotations

import asyncio
import json
import math
import os
import socket
import subprocess
import sys
import weakref
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

from compilefarm.core.errors import StoreUnavailable
from compilefarm.store.backend import Backend, StoredObject, staging_of_user, temporary_copy
from compilefarm.store.bucket_frames import PING, Frame, Value, read_frame, stored_object, write_frame

# Longer than a request is tried again.
ANSWER_SECONDS = 60.0
# How often whoever waits asks whether the process does anything at all, and how long it may take to say so. It may have
# been stopped.
_LOOK_SECONDS = 10.0
_PONG_SECONDS = 20.0
# A million names of a kilobyte, or 1.7 million of a hundred characters. Who lists holds as much.
_MOST_LISTED_BYTES = 1024 * 1024 * 1024
# What is kept of an object beside its name.
_OBJECT_BYTES = 500
_READ_AT_ONCE = 1024 * 1024
# Contents on their way to the process, which has them in memory before it can begin with any: 8 MiB each, as a rule.
_WRITTEN_AT_ONCE = 16
_PROGRAM = "compilefarm.store.bucket_process"
# Address space is what is bounded there, and threads and arenas take much of it. What it ends with is one line.
_ENVIRONMENT = {"TOKIO_WORKER_THREADS": "2", "MALLOC_ARENA_MAX": "2", "RUST_BACKTRACE": "0"}
_ENDED = "the process that asks the service has ended; it says why, which is too large an answer if it is of memory"
_STOPPED = "the process that asks the service does nothing, and another takes its place"
_T = TypeVar("_T")


class BucketBackend(Backend):
    """Has a process of its own ask the service. It starts with what is asked first, and anew when it has ended.

    Args:
        location: of the bucket, as `open_bucket` takes it.
        shown: the same for people.
        retry_seconds: for how long a request is tried again.
        answer_seconds: how long an answer may take, but that for a large object, and a part of a listing.
        look_seconds: how often the process is asked whether it does anything, while an answer does not come.
        pong_seconds: how long it may take to say so.
    """

    def __init__(
        self,
        location: str,
        *,
        shown: str,
        retry_seconds: float,
        answer_seconds: float = ANSWER_SECONDS,
        look_seconds: float = _LOOK_SECONDS,
        pong_seconds: float = _PONG_SECONDS,
    ) -> None:
        self._answer_seconds = answer_seconds
        self._look_seconds = look_seconds
        self._pong_seconds = pong_seconds
        self._arguments = (location, str(retry_seconds))
        self._shown = shown
        self._process: _Process | None = None
        self._writing = asyncio.Semaphore(_WRITTEN_AT_ONCE)

    @property
    def location(self) -> str:
        return self._shown

    async def find(self, path: str) -> bytes | None:
        answer = await self._ask("find", path)
        return answer.content if answer.values["answer"] else None

    async def find_end(self, path: str, *, size_bytes: int) -> bytes | None:
        answer = await self._ask("find_end", path, values={"size_bytes": size_bytes})
        return answer.content if answer.values["answer"] else None

    async def find_object(self, path: str) -> StoredObject | None:
        answer = await self._ask("find_object", path)
        return stored_object(answer.values["row"]) if answer.values["answer"] else None

    async def create(self, path: str, *, content: bytes) -> bool:
        async with self._writing:
            return bool((await self._ask("create", path, content=content)).values["answer"])

    async def open(self, path: str) -> IO[bytes] | None:
        async def write(file: IO[bytes]) -> bool:
            return bool((await self._ask("open", path, file=file, is_large=True)).values["answer"])

        return await temporary_copy(write)

    async def create_from(self, path: str, *, file: Path) -> bool:
        return bool((await self._ask("create_from", path, values={"file": str(file)}, is_large=True)).values["answer"])

    @property
    def staging(self) -> Path:
        return staging_of_user()

    async def settle(self, path: str) -> None:
        """Does nothing: a service acknowledges what it has."""

    async def touch(self, path: str) -> None:
        await self._ask("touch", path)

    async def move(self, path: str, *, target: str) -> bool:
        return bool((await self._ask("move", path, values={"target": target})).values["answer"])

    async def delete(self, path: str) -> None:
        await self._ask("delete", path)

    async def objects(self, folder: str) -> AsyncIterator[StoredObject]:
        async for row in self._list("objects", folder):
            yield stored_object(row)

    async def folders(self, folder: str, *, beginning: str = "") -> list[str]:
        return [str(row) async for row in self._list("folders", folder, beginning=beginning)]

    async def _ask(
        self,
        operation: str,
        path: str,
        *,
        values: dict[str, Value] | None = None,
        content: bytes = b"",
        file: IO[bytes] | None = None,
        is_large: bool = False,
    ) -> Frame:
        """Has one thing done that has one answer.

        Args:
            operation: what.
            path: of which object.
            values: what else it needs.
            content: what is written.
            file: what is written to.
            is_large: whether it may take as long as the process says.
        """
        asked = Frame(values={"operation": operation, "path": path, **(values or {})}, content=content)
        async with self._asking(asked, file=file) as answers:
            return await self._read(answers, asked, seconds=None if is_large else self._answer_seconds)

    async def _list(self, operation: str, folder: str, *, beginning: str = "") -> AsyncIterator[Value]:
        asked = Frame(values={"operation": operation, "path": folder, "beginning": beginning})
        listed_bytes = 0
        async with self._asking(asked) as answers:
            while not (frame := await self._read(answers, asked, seconds=self._answer_seconds)).values.get("done"):
                rows = frame.rows()
                # All that a row says is in the message, whose size is bounded.
                listed_bytes += len(json.dumps(rows)) + _OBJECT_BYTES * len(rows)
                if listed_bytes > _MOST_LISTED_BYTES:
                    raise self._failure(asked, "there is more than a store can have")
                for row in rows:
                    yield row

    @asynccontextmanager
    async def _asking(self, asked: Frame, *, file: IO[bytes] | None = None) -> AsyncIterator[_Answers]:
        """Inside, a message was sent, and its answers can be read. What goes on is given up at the end."""
        try:
            end, process = await self._connect(asked, file=file)
        except OSError as error:
            raise self._failure(asked, f"no process can ask the service: {error.strerror}") from error
        reader, writer = await asyncio.open_unix_connection(sock=end, limit=_READ_AT_ONCE)
        try:
            sent = write_frame(writer, asked)
            await self._done(sent, asked, process=process, seconds=self._answer_seconds)
            yield _Answers(process, reader)
        except (EOFError, ConnectionError) as error:
            raise self._failure(asked, _ENDED) from error
        finally:
            # Closed it would stay until a process that takes nothing has taken what was asked.
            writer.transport.abort()

    async def _connect(self, asked: Frame, *, file: IO[bytes] | None) -> tuple[socket.socket, _Process]:
        """Returns a socket at whose other end a process reads one message, and answers it; and that process."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                if (process := self._process) is not None:
                    # It may have ended.
                    with suppress(ConnectionError):
                        await self._hand_over(theirs, asked, file=file, process=process)
                        return ours, process
                if self._process is process:
                    self._process = _Process(self._arguments)
                process = self._process
                assert process is not None
                await self._hand_over(theirs, asked, file=file, process=process)
        except BaseException:
            ours.close()
            raise
        return ours, process

    async def _hand_over(self, end: socket.socket, asked: Frame, *, file: IO[bytes] | None, process: _Process) -> None:
        await self._done(process.take(end, file=file), asked, process=process, seconds=self._answer_seconds)

    async def _read(self, answers: _Answers, asked: Frame, *, seconds: float | None) -> Frame:
        try:
            frame = await self._done(read_frame(answers.reader), asked, process=answers.process, seconds=seconds)
        except ValueError as error:
            raise self._failure(asked, str(error)) from error
        if "error" in frame.values:
            raise StoreUnavailable(frame.text("error"))
        return frame

    async def _done(
        self, work: Coroutine[Any, Any, _T], asked: Frame, *, process: _Process, seconds: float | None
    ) -> _T:
        """Waits for what a process does its part of, for some seconds, and as long as it does anything at all."""
        clock, doing = asyncio.get_running_loop().time, asyncio.ensure_future(work)
        until = math.inf if seconds is None else clock() + seconds
        try:
            while not doing.done():
                await asyncio.wait([doing], timeout=min(self._look_seconds, until - clock()))
                if doing.done():
                    break
                if clock() >= until:
                    raise self._failure(asked, f"nothing comes for {seconds:g} s")
                if not await process.answers(within_seconds=self._pong_seconds):
                    self._replace(process)
                    raise self._failure(asked, _STOPPED)
            return doing.result()
        finally:
            doing.cancel()

    def _replace(self, process: _Process) -> None:
        """Ends a process that does nothing, with all that it was asked; the next thing to do has another one."""
        process.end()
        if self._process is process:
            self._process = None

    def _failure(self, asked: Frame, cause: str) -> StoreUnavailable:
        operation, path = asked.text("operation"), asked.text("path")
        return StoreUnavailable(f"the store at {self._shown} could not do {operation} of {path}: {cause}")


class _Answers(NamedTuple):
    """What a process answers: the process, and where it is read."""

    process: _Process
    reader: asyncio.StreamReader


class _Process:
    """A process that asks the service, until it is ended or nobody has this object any more.

    Args:
        arguments: of its program.
    """

    def __init__(self, arguments: Iterable[str]) -> None:
        # Messages, since descriptors go with one.
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setblocking(False)
        # Whose turn it is to send one, where there is no room for it.
        self._turn = asyncio.Lock()
        with theirs:
            process = subprocess.Popen(
                # -P: not what lies in the folder in which the service was started.
                [sys.executable, "-P", "-m", _PROGRAM, *arguments, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**os.environ, **_ENVIRONMENT},
            )
        self._process = process
        weakref.finalize(self, _close, process, self._control)

    def end(self) -> None:
        """Ends the process; whoever waits for it is told."""
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        self._process.kill()

    async def take(self, end: socket.socket, *, file: IO[bytes] | None = None) -> None:
        """Gives the process a socket from which it reads one message, which it answers there.

        Args:
            end: the socket.
            file: what it may write to.

        Raises:
            ConnectionError: the process has ended.
        """
        descriptors = [end.fileno(), *([] if file is None else [file.fileno()])]
        async with self._turn:
            while not self._sends(descriptors):
                await _until_writable(self._control)

    def _sends(self, descriptors: Sequence[int]) -> bool:
        """Sends descriptors; returns False where it has not taken those before."""
        try:
            socket.send_fds(self._control, [b"."], descriptors)
        except BlockingIOError:
            return False
        return True

    async def answers(self, *, within_seconds: float) -> bool:
        """Returns whether the process does anything. One that has ended has told all who asked it something."""
        try:
            async with asyncio.timeout(within_seconds):
                await self._ping()
        except TimeoutError:
            return False
        except (EOFError, OSError):
            return True
        return True

    async def _ping(self) -> None:
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                await self.take(theirs)
            reader, writer = await asyncio.open_unix_connection(sock=ours)
            try:
                await write_frame(writer, Frame(values={"operation": PING, "path": ""}))
                await read_frame(reader)
            finally:
                writer.transport.abort()


async def _until_writable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    writable = asyncio.Event()
    loop.add_writer(connection, writable.set)
    try:
        await writable.wait()
    finally:
        loop.remove_writer(connection)


def _close(process: subprocess.Popen[bytes], control: socket.socket) -> None:
    control.close()
    process.kill()
    process.wait()
