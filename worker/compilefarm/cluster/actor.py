"""A worker in a process of a Ray node: the pool of one host, with one slot."""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
import math
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import ray

from compilefarm.cluster.parts import split
from compilefarm.cluster.settings import MakePool
from compilefarm.cluster.wishes import GatewayToolchains, Wish
from compilefarm.cluster.work import Kept, News, OnPhase, Result, Work
from compilefarm.core.contents import Content
from compilefarm.core.errors import WorkerLost
from compilefarm.core.pool import Artifact, Assignment, WorkerPool, WorkerView
from compilefarm.v1.child_pb2 import ChildBlob
from compilefarm.v1.gateways_pb2 import ToolchainRecord
from compilefarm.v1.manifest_pb2 import Manifest
from compilefarm.worker.spooling import SpoolingAssembly

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.2
# A gateway that looks hears from the worker at least this often, and the worker from the gateway.
_MOST_LOOK_SECONDS = 5.0
_CLOSE_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where an actor runs.

    Attributes:
        host: the name of the machine, or of the container.
        node: Ray's id of it.
        version: of Compilefarm there.
    """

    host: str
    node: str
    version: str


class WorkerActor:
    """Does one job at a time.

    Args:
        make_pool: makes the pool that has its only slot.
        lifetime_seconds: how long it goes on when its gateway is silent; None: Ray ends it with its gateway.
    """

    def __init__(self, make_pool: MakePool, lifetime_seconds: float | None = None) -> None:
        self._make_pool = make_pool
        self._lifetime_seconds = lifetime_seconds
        self._pool: WorkerPool | None = None
        self._toolchains = GatewayToolchains()
        self._start = asyncio.Lock()
        # A job that was given up ends before the next one begins.
        self._turn = asyncio.Lock()
        self._work: Work | None = None
        self._parcel = _Parcel("")
        self._heard_seconds = time.monotonic()
        # At once: the gateway may be gone by the time at which there is a node for it.
        self._watch = lifetime_seconds and asyncio.get_running_loop().create_task(self._outlive(lifetime_seconds))

    async def place(self) -> Place:
        """Where it runs."""
        return Place(
            host=socket.gethostname(),
            node=ray.get_runtime_context().get_node_id(),
            version=importlib.metadata.version("compilefarm"),
        )

    async def start(self) -> str | None:
        """Starts the worker, unless it has started for a gateway before this one. Returns why there is none; None if
        there is one, which may have failed.
        """
        async with self._start:
            problem = None if self._pool is not None else await self._started()
        self._heard_seconds = time.monotonic()
        return problem

    async def wish(self) -> Wish | None:
        """What the worker wants of its gateway; None if there is nothing for a while."""
        return await self._toolchains.wish()

    async def grant(self, machine: str, record: ToolchainRecord | None) -> None:
        """Hears what is known of the C++ compiler of a machine, which was a wish; None: nothing is."""
        self._toolchains.grant(machine, record)

    async def look(self, seen: WorkerView | None) -> WorkerView:
        """The state of the worker, once it differs from what was seen, or after a while."""
        self._heard_seconds = time.monotonic()
        until_seconds = self._heard_seconds + min(_MOST_LOOK_SECONDS, (self._lifetime_seconds or math.inf) / 4)
        while (view := self._view()) == seen and time.monotonic() < until_seconds:  # noqa: ASYNC110 - it does not say
            await asyncio.sleep(_LOOK_SECONDS)
        self._heard_seconds = time.monotonic()
        return view

    async def adopt(self) -> Kept | None:
        """Goes on for a gateway that has started again. Returns the compile that it does, or has done since the gateway
        before was gone; a verification has ended.
        """
        self._heard_seconds = time.monotonic()
        async with self._turn:
            kept = None if self._work is None else self._work.kept
            if kept is None:
                await self._end_work()
            return kept

    async def begin(self, name: str, assignment: Assignment) -> News:
        """Begins to compile, as WorkerPool.run, and returns the first news of it.

        Args:
            name: by which the work is asked for.
            assignment: the job.
        """
        pool, worker = self._get_pool(), self._view().name
        kept = Kept.of(assignment, name=name)
        await self._take(name, lambda on_phase: pool.run(assignment, worker=worker, on_phase=on_phase), kept=kept)
        return await self.news(name, 0)

    async def receive(self, name: str, digest: str, continues: bool, *parts: bytes) -> None:
        """Takes a piece of a blob of an artifact that is to be verified.

        Args:
            name: of the verification; pieces of an earlier one are dropped.
            digest: of the blob.
            continues: whether there is more of it.
            parts: of the piece.
        """
        if self._parcel.name != name:
            self._parcel = _Parcel(name)
        await self._parcel.add(ChildBlob(digest=digest, content=b"".join(parts), continues=continues))

    async def verify(self, name: str, assignment: Assignment, manifest: Manifest) -> News:
        """Begins to verify the artifact whose blobs were received, as WorkerPool.verify, and returns the first news."""
        received, self._parcel = self._parcel, _Parcel("")
        blobs = received.blobs if received.name == name else {}
        pool, worker = self._get_pool(), self._view().name
        artifact = Artifact(manifest=manifest, blobs=blobs)
        await self._take(name, lambda _: pool.verify(assignment, artifact, worker=worker))
        return await self.news(name, 0)

    async def news(self, name: str, seen: int) -> News:
        """What has come of a piece of work after so many phases; see Work.news."""
        work = self._work
        if work is None or work.name != name:
            return News(outcome=WorkerLost("the worker has another job by now"))
        return await work.news(seen)

    async def read(self, name: str, digest: str, start: int) -> Sequence[bytes]:
        """A piece of a blob that a piece of work has made, in PARTS parts."""
        assert self._work is not None
        assert self._work.name == name
        return split(await self._work.read(digest, start=start))

    async def end(self, name: str) -> None:
        """Ends a piece of work, and forgets what came of it."""
        async with self._turn:
            if self._work is not None and self._work.name == name:
                await self._end_work()

    async def close(self) -> None:
        """Ends the worker and its processes."""
        async with self._turn:
            await self._end_work()
        if self._pool is not None:
            await self._pool.close()

    async def _started(self) -> str | None:
        try:
            shares = await asyncio.to_thread(_shares)
            self._pool = await asyncio.to_thread(self._make_pool, shares, self._toolchains)
        except (OSError, RuntimeError) as error:
            return str(error)
        try:
            await self._pool.start()
        except RuntimeError as error:
            # Its view says why, and it goes on trying.
            log.info("the worker has not started: %s", error)
        return None

    async def _take(
        self, name: str, begin: Callable[[OnPhase], Awaitable[Result]], *, kept: Kept | None = None
    ) -> None:
        async with self._turn:
            await self._end_work()
            self._work = Work(name, begin, kept=kept)

    async def _end_work(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            await work.end()

    async def _outlive(self, lifetime_seconds: float) -> None:
        """Waits until the gateway has been silent for so long. Then the worker ends, so that its node can."""
        while True:
            left_seconds = self._heard_seconds + lifetime_seconds - time.monotonic()
            # While the worker starts, its gateway has nothing to say.
            if left_seconds <= 0 and not self._start.locked():
                break
            await asyncio.sleep(max(left_seconds, _LOOK_SECONDS))
        log.warning("the gateway has been silent for %.0f s: the worker ends, and with it its job", lifetime_seconds)
        try:
            await asyncio.wait_for(self.close(), timeout=_CLOSE_SECONDS)
        finally:
            ray.kill(ray.get_runtime_context().current_actor)

    def _get_pool(self) -> WorkerPool:
        assert self._pool is not None, "the worker was not started"
        return self._pool

    def _view(self) -> WorkerView:
        (view,) = self._get_pool().workers()
        return view


class _Parcel:
    """Blobs that arrive in pieces."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.blobs: dict[str, Content] = {}
        self._assembly = SpoolingAssembly()

    async def add(self, piece: ChildBlob) -> None:
        if (blob := await self._assembly.add(piece)) is not None:
            self.blobs[piece.digest] = blob[1]


def _shares() -> int:
    """Among how many slots of this size the node is shared."""
    context = ray.get_runtime_context()
    own, node = context.get_assigned_resources(), context.get_node_id()
    (has,) = (each["Resources"] for each in ray.nodes() if each["NodeID"] == node)
    kind = "GPU" if own.get("GPU") else "CPU"
    return max(1, int(has[kind] / own[kind])) if own.get(kind) else 1
