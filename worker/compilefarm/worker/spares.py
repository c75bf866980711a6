"""Keeps a spare child warm, so that a task need not wait for imports."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import logging
from collections.abc import AsyncIterator
from contextvars import Context

from compilefarm.v1.child_pb2 import ChildReady
from compilefarm.worker.process import ChildDied, ChildNotStarted, ChildProcess, ChildSettings

log = logging.getLogger(__name__)


class SpareChild:
    """Keeps one child ready, and hands it out for one task.

    Args:
        settings: how children are started.
        at_once: starts another as soon as one is handed out, and not only when `warm_up` is called.
        owner: name of the worker, for messages.
        restart_seconds: how long to wait before a child that could not start is started again.
    """

    def __init__(self, settings: ChildSettings, *, at_once: bool = False, owner: str, restart_seconds: float) -> None:
        self._settings = settings
        self._at_once = at_once
        self._owner = owner
        self._restart_seconds = restart_seconds
        self._ready: ChildReady | None = None
        self._problem: str | None = None
        self._warming: asyncio.Task[ChildProcess] | None = None
        self._children: set[ChildProcess] = set()
        self._closing = False
        # The first attempt to start has come to an end, good or bad.
        self._attempted = asyncio.Event()

    @property
    def ready(self) -> ChildReady | None:
        """How children describe themselves and this machine; None before the first is ready."""
        return self._ready

    @property
    def problem(self) -> str | None:
        """Why no child can be started; None if the last attempt succeeded."""
        return self._problem

    @property
    def is_ready(self) -> bool:
        """Whether a task could begin at once."""
        return self._warming is not None and self._warming.done()

    def warm_up(self) -> None:
        """Starts a child, unless there is one."""
        if self._warming is None and not self._closing:
            self._attempted = asyncio.Event()
            # In a context of its own: the child belongs to no job yet, least of all to the one that has just ended.
            self._warming = asyncio.create_task(
                self._ready_child(), name=f"spare child of {self._owner}", context=Context()
            )

    async def attempted(self) -> None:
        """Waits until the child is ready or could not start, which shows in `problem`."""
        await self._attempted.wait()

    @contextlib.asynccontextmanager
    async def taken(self) -> AsyncIterator[ChildProcess]:
        """Hands out the child for one task, and ends it afterwards.

        Raises:
            ChildNotStarted: no child is ready, and the last attempt to start one failed.
        """
        child = await self._take()
        try:
            yield child
        finally:
            await self._end(child)

    async def close(self) -> None:
        """Ends every child. None is left when it returns."""
        self._closing = True
        if self._warming is not None:
            self._warming.cancel()
            await asyncio.gather(self._warming, return_exceptions=True)
        for child in list(self._children):
            await self._end(child)

    async def _take(self) -> ChildProcess:
        while not await self._is_there(child := await self._take_any()):
            # A task that is given to it would be blamed for its death, or would wait for it in vain.
            log.warning("worker %s: its spare process has ended or is stopped, and another one is started", self._owner)
            await self._end(child)
        return child

    async def _is_there(self, child: ChildProcess) -> bool:
        try:
            return not child.has_ended and await child.answers()
        except BaseException:
            await self._end(child)
            raise

    async def _take_any(self) -> ChildProcess:
        self.warm_up()
        await self._attempted.wait()
        if self._problem is not None:
            # It is tried again and again; the task may find another worker meanwhile.
            raise ChildNotStarted(self._problem)
        assert self._warming is not None, "a closed slot gets no tasks"
        # Shielded: a task that is cancelled meanwhile must not take the next one's child with it.
        child = await asyncio.shield(self._warming)
        self._warming = None
        if self._at_once:
            self.warm_up()
        return child

    async def _ready_child(self) -> ChildProcess:
        # Where others have been ready, one that is not was probably killed, as the kernel does when memory runs out.
        may_try_at_once = self._ready is not None
        while True:
            try:
                child = await self._start_child()
            except (ChildDied, OSError) as error:
                if may_try_at_once:
                    may_try_at_once = False
                    log.warning(
                        "worker %s: its process could not start, and another one is started: %s", self._owner, error
                    )
                    continue
                self._problem = f"its process cannot start: {error}"
                log.error("worker %s: %s", self._owner, self._problem)
                self._attempted.set()
                await asyncio.sleep(self._restart_seconds)
            else:
                self._problem = None
                self._attempted.set()
                return child

    async def _start_child(self) -> ChildProcess:
        child = await ChildProcess.start(self._settings)
        self._children.add(child)
        try:
            ready = await child.ready()
            _check_version(ready.farm_version)
        except BaseException:
            await self._end(child)
            raise
        self._ready = ready
        return child

    async def _end(self, child: ChildProcess) -> None:
        await child.end()
        self._children.discard(child)


def _check_version(theirs: str) -> None:
    ours = importlib.metadata.version("compilefarm")
    if theirs != ours:
        raise ChildDied(
            f"its interpreter has Compilefarm {theirs or 'of an older release'}, this farm is {ours}: install the same"
        )
