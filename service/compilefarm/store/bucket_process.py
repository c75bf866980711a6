"""A process that speaks with a bucket, so that what the bucket answers can end that process and no other.

obstore reads listings and errors whole, however much there is of them, and sets aside as much memory as their headers
say; where there is none it ends its process. This one has little memory to take, and is started anew when it has ended.

    python -m compilefarm.store.bucket_process LOCATION RETRY_SECONDS DESCRIPTOR
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import sys
import traceback
from collections.abc import AsyncIterator
from pathlib import Path

from compilefarm.core.errors import StoreUnavailable
from compilefarm.store import bucket_frames
from compilefarm.store.bucket_frames import Frame, Value, read_frame, row_of, write_frame
from compilefarm.store.object_backend import ObjectBackend
from compilefarm.store.s3 import open_service

# Beyond what it has when it starts.
MEMORY_LIMIT_BYTES = 1024 * 1024 * 1024
# Contents that are in memory at a time.
_CONTENTS_AT_ONCE = 32
_LISTED_AT_ONCE = 100


class _Operations:
    """What is asked of a bucket, by name. Each answers with messages.

    Args:
        backend: the bucket.
    """

    def __init__(self, backend: ObjectBackend) -> None:
        self._backend = backend
        self._contents = asyncio.Semaphore(_CONTENTS_AT_ONCE)

    async def answers(self, asked: Frame, *, file: int | None) -> AsyncIterator[Frame]:
        """Does what is asked for.

        Args:
            asked: which operation, and of what.
            file: a descriptor that an object is written to, for `open`.
        """
        path = asked.text("path")
        match asked.text("operation"):
            case bucket_frames.PING:
                yield Frame(values={"answer": True})
            case "objects":
                async for frame in self._objects(path):
                    yield frame
            case "folders":
                names = await self._backend.folders(path, beginning=asked.text("beginning"))
                for first in range(0, len(names), _LISTED_AT_ONCE):
                    yield Frame(values={"rows": list[Value](names[first : first + _LISTED_AT_ONCE])})
            case "find" | "find_end" as operation:
                async with self._contents:
                    content = await self._content(operation, asked, path=path)
                    yield Frame(values={"answer": content is not None}, content=content or b"")
            case "open" if file is not None:
                yield Frame(values={"answer": await self._copy(path, file=file)})
            case "find_object":
                stored = await self._backend.find_object(path)
                yield Frame(values={"answer": stored is not None, "row": None if stored is None else row_of(stored)})
            case operation:
                yield Frame(values={"answer": await self._write(operation, asked, path=path)})

    async def _objects(self, folder: str) -> AsyncIterator[Frame]:
        rows: list[Value] = []
        async for stored in self._backend.objects(folder):
            rows.append(row_of(stored))
            if len(rows) == _LISTED_AT_ONCE:
                yield Frame(values={"rows": rows})
                rows = []
        yield Frame(values={"rows": rows})

    async def _content(self, operation: str, asked: Frame, *, path: str) -> bytes | None:
        if operation == "find":
            return await self._backend.find(path)
        return await self._backend.find_end(path, size_bytes=asked.number("size_bytes"))

    async def _copy(self, path: str, *, file: int) -> bool:
        with os.fdopen(file, "wb", closefd=False) as target:
            return await self._backend.copy_to(path, file=target)

    async def _write(self, operation: str, asked: Frame, *, path: str) -> bool:
        match operation:
            case "create":
                return await self._backend.create(path, content=asked.content)
            case "create_from":
                return await self._backend.create_from(path, file=Path(asked.text("file")))
            case "move":
                return await self._backend.move(path, target=asked.text("target"))
            case "touch":
                await self._backend.touch(path)
            case "delete":
                await self._backend.delete(path)
            case _:
                raise ValueError(f"a bucket has no operation {operation!r}")
        return True


async def _serve(control: socket.socket, *, backend: ObjectBackend) -> None:
    """Does what is asked for at each socket that comes, until no more can come."""
    operations, loop, ended = _Operations(backend), asyncio.get_running_loop(), asyncio.Event()
    running: set[asyncio.Task[None]] = set()

    def accept() -> None:
        content, descriptors, _, _ = socket.recv_fds(control, 1, 2)
        if not content:
            ended.set()
            return
        if not descriptors:
            # So many files are open as may be (unix(7), MSG_CTRUNC). Who has asked finds its socket closed.
            return
        task = loop.create_task(_serve_one(operations, *descriptors))
        running.add(task)
        task.add_done_callback(running.discard)

    loop.add_reader(control, accept)
    await ended.wait()
    loop.remove_reader(control)


async def _serve_one(operations: _Operations, descriptor: int, file: int | None = None) -> None:
    """Does one thing; who has asked gives it up by closing its end."""
    reader, writer = await asyncio.open_unix_connection(sock=socket.socket(fileno=descriptor))
    try:
        asked = await read_frame(reader)
        work = asyncio.ensure_future(_answer(operations, asked, writer, file=file))
        given_up = asyncio.ensure_future(reader.read(1))
        await asyncio.wait({work, given_up}, return_when=asyncio.FIRST_COMPLETED)
        work.cancel()
        given_up.cancel()
        await asyncio.gather(work, given_up, return_exceptions=True)
        defect = None if work.cancelled() else work.exception()
        if defect is not None and not isinstance(defect, OSError):
            traceback.print_exception(defect)
    except (OSError, EOFError):
        # Who has asked is gone.
        return
    finally:
        writer.close()
        if file is not None:
            os.close(file)


async def _answer(operations: _Operations, asked: Frame, writer: asyncio.StreamWriter, *, file: int | None) -> None:
    try:
        async for frame in operations.answers(asked, file=file):
            await write_frame(writer, frame)
        await write_frame(writer, Frame(values={"done": True}))
    except StoreUnavailable as error:
        await write_frame(writer, Frame(values={"error": str(error)}))


def _limit() -> None:
    """Bounds the memory of this process, from now on, and has it leave no core, in which credentials are. It may open
    as many files as there can be: each thing that it is asked needs some.
    """
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY_LIMIT_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    # With 0 the kernel would still start the program that `core_pattern` names (core(5)); with 1 it does not.
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    if most != 0:
        resource.setrlimit(resource.RLIMIT_CORE, (1, 1))


def main(location: str, retry_seconds: str, descriptor: str) -> None:
    """Speaks with a bucket for the process that has the other end of a socket, as long as that has it.

    Args:
        location: see `open_bucket`.
        retry_seconds: for how long a request is tried again.
        descriptor: of the socket.
    """
    # A signal to a whole group is for who started this: it needs its store until it has ended.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    backend = open_service(location, retry_seconds=float(retry_seconds))
    _limit()
    asyncio.run(_serve(socket.socket(fileno=int(descriptor)), backend=backend))


if __name__ == "__main__":
    main(*sys.argv[1:])
