"""A network that fails: a proxy between pods and a farm."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum


class Fault(Enum):
    """What happens to what passes."""

    NONE = "none"
    DELAY = "delays"
    RESET = "resets"
    BLACK_HOLE = "black holes"


class FaultProxy:
    """Passes connections on, or not quite.

    Attributes:
        address: where it listens.

    Args:
        target: "host:port" of the farm.
        delay_seconds: how long bytes take while there are delays.
    """

    def __init__(self, target: str, *, delay_seconds: float = 0.3) -> None:
        host, _, port = target.rpartition(":")
        self._host, self._port = host, int(port)
        self._delay_seconds = delay_seconds
        self._fault = Fault.NONE
        self._loop = asyncio.new_event_loop()
        self._links: set[_Link] = set()
        self.address = ""

    @contextmanager
    def run(self) -> Iterator[None]:
        """Runs it, in a thread of its own."""
        thread = threading.Thread(target=self._loop.run_forever, name="fault proxy")
        thread.start()
        server = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._pass, "127.0.0.1", 0), self._loop).result()
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield
        finally:
            asyncio.run_coroutine_threadsafe(self._close(server), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join()
            self._loop.close()

    def set_fault(self, fault: Fault) -> None:
        """From now on. Resets are of what is connected now; what falls into a black hole never comes out."""
        self._loop.call_soon_threadsafe(self._set_fault, fault)

    def _set_fault(self, fault: Fault) -> None:
        self._fault = fault
        for link in list(self._links):
            if fault is Fault.RESET:
                link.reset()
            link.is_lost |= fault is Fault.BLACK_HOLE

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(writer)
        link.is_lost = self._fault is Fault.BLACK_HOLE
        self._links.add(link)
        try:
            with contextlib.suppress(OSError):
                farm_reader, farm_writer = await asyncio.open_connection(self._host, self._port)
                link.writers.append(farm_writer)
                await asyncio.gather(
                    self._pump(reader, farm_writer, link=link), self._pump(farm_reader, writer, link=link)
                )
        except asyncio.CancelledError:
            # It is the end of the proxy; asyncio's streams would make it an error of theirs.
            pass
        finally:
            link.reset()
            self._links.discard(link)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, link: _Link) -> None:
        with contextlib.suppress(OSError):
            while content := await reader.read(1 << 16):
                if self._fault is Fault.DELAY:
                    await asyncio.sleep(self._delay_seconds)
                if not link.is_lost:
                    writer.write(content)
                    await writer.drain()
        # Who lost a connection in a black hole is not told that the other end has gone.
        if not link.is_lost:
            link.reset()

    async def _close(self, server: asyncio.Server) -> None:
        server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Link:
    """A connection and its other half.

    Attributes:
        writers: to both ends, as far as they are connected.
        is_lost: whether nothing comes through any more.
    """

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writers = [writer]
        self.is_lost = False

    def reset(self) -> None:
        """Ends both halves without ceremony."""
        for writer in self.writers:
            writer.transport.abort()
