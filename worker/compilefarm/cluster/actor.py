"""A worker in a process of a Ray node: the pool of one host, with one slot."""

from __future__ import annotations

import asyncio
import importlib.metadata
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import ray

from compilefarm.cluster.deliveries import Message, messages_of
from compilefarm.cluster.settings import MakePool
from compilefarm.core.pool import Artifact, Assignment, WorkerPool, WorkerView
from compilefarm.v1.child_pb2 import ChildBlob
from compilefarm.v1.manifest_pb2 import Manifest
from compilefarm.worker.pieces import Assembly

_LOOK_SECONDS = 0.2


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
    """

    def __init__(self, make_pool: MakePool) -> None:
        self._make_pool = make_pool
        self._pool: WorkerPool | None = None
        # A job that was cancelled ends before the next one begins.
        self._turn = asyncio.Lock()
        self._parcel = _Parcel("")

    async def place(self) -> Place:
        """Where it runs."""
        return Place(
            host=socket.gethostname(),
            node=ray.get_runtime_context().get_node_id(),
            version=importlib.metadata.version("compilefarm"),
        )

    async def start(self) -> str | None:
        """Starts the worker. Returns why there is none; None if there is one, which may have failed."""
        try:
            shares = await asyncio.to_thread(_shares)
            self._pool = await asyncio.to_thread(self._make_pool, shares)
        except (OSError, RuntimeError) as error:
            return str(error)
        try:
            await self._pool.start()
        except RuntimeError:
            # Its view says why, and it goes on trying.
            return None
        return None

    async def views(self) -> AsyncIterator[WorkerView]:
        """The state of the worker, and the next one whenever it has changed."""
        seen = None
        while True:
            (view,) = self._get_pool().workers()
            if view != seen:
                yield view
            seen = view
            await asyncio.sleep(_LOOK_SECONDS)

    async def run(self, assignment: Assignment) -> AsyncIterator[Message]:
        """Compiles, as WorkerPool.run."""
        async with self._turn:
            pool, worker = self._get_pool(), self._name()
            async for message in messages_of(lambda on_phase: pool.run(assignment, worker=worker, on_phase=on_phase)):
                yield message

    async def receive(self, parcel: str, piece: ChildBlob) -> None:
        """Takes a piece of a blob of an artifact that is to be verified.

        Args:
            parcel: names the verification; pieces of an earlier one are dropped.
            piece: it.
        """
        if self._parcel.name != parcel:
            self._parcel = _Parcel(parcel)
        self._parcel.add(piece)

    async def verify(self, parcel: str, assignment: Assignment, manifest: Manifest) -> AsyncIterator[Message]:
        """Verifies the artifact whose blobs were received, as WorkerPool.verify."""
        async with self._turn:
            pool, worker = self._get_pool(), self._name()
            with self._opened(parcel) as received:
                artifact = Artifact(manifest=manifest, blobs=received.blobs)
                async for message in messages_of(lambda _: pool.verify(assignment, artifact, worker=worker)):
                    # The gateway has the blobs.
                    if not isinstance(message, ChildBlob):
                        yield message

    async def close(self) -> None:
        """Ends the worker and its processes."""
        if self._pool is not None:
            await self._pool.close()

    @contextmanager
    def _opened(self, name: str) -> Iterator[_Parcel]:
        received, self._parcel = self._parcel, _Parcel("")
        yield received if received.name == name else _Parcel(name)

    def _get_pool(self) -> WorkerPool:
        assert self._pool is not None, "the worker was not started"
        return self._pool

    def _name(self) -> str:
        (view,) = self._get_pool().workers()
        return view.name


class _Parcel:
    """Blobs that arrive in pieces."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.blobs: dict[str, bytes] = {}
        self._assembly = Assembly()

    def add(self, piece: ChildBlob) -> None:
        if (content := self._assembly.add(piece)) is not None:
            self.blobs[piece.digest] = content


def _shares() -> int:
    """Among how many slots of this size the node is shared."""
    context = ray.get_runtime_context()
    own, node = context.get_assigned_resources(), context.get_node_id()
    (has,) = (each["Resources"] for each in ray.nodes() if each["NodeID"] == node)
    kind = "GPU" if own.get("GPU") else "CPU"
    return max(1, int(has[kind] / own[kind])) if own.get(kind) else 1
