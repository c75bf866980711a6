"""Workers that are actors of a Ray cluster."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from compilefarm.cluster.connection import disconnect
from compilefarm.cluster.deliveries import Message, OnPhase, Result, result_of
from compilefarm.cluster.settings import SlotSettings
from compilefarm.cluster.slot import Slot, cause_of
from compilefarm.core.errors import WorkerLost
from compilefarm.core.pool import Artifact, Assignment, WorkerView
from compilefarm.v1.admin_service_pb2 import WORKER_STATE_FAILED
from compilefarm.worker.pieces import pieces_of

# Pieces of a result that may lie in Ray's memory for the gateway.
_PIECES_AHEAD = 8


class RayPool:
    """An actor for each slot, on the cluster that this process is connected to. Satisfies WorkerPool and Scaling of
    compilefarm.core.pool.

    The actors end with this process, and so do the jobs that they have.
    """

    def __init__(self, slots: Sequence[SlotSettings]) -> None:
        self._slots = {settings.name: Slot(settings) for settings in slots}

    async def start(self) -> None:
        """See WorkerPool.start."""
        for slot in self._slots.values():
            slot.open()
        await asyncio.gather(*(slot.attempted() for slot in self._slots.values()))
        views = self.workers()
        if views and all(view.state == WORKER_STATE_FAILED for view in views):
            problems = dict.fromkeys(str(view.problem) for view in views)
            raise RuntimeError("no worker could start on the Ray cluster:\n" + "\n".join(problems))

    async def close(self) -> None:
        """See WorkerPool.close. Ends the connection to Ray, too."""
        await asyncio.gather(*(slot.close() for slot in self._slots.values()))
        await asyncio.to_thread(disconnect)

    def workers(self) -> Sequence[WorkerView]:
        """See WorkerPool.workers. Those that come and go are among them while there are any."""
        return [slot.view() for slot in self._slots.values() if not slot.is_absent]

    def expect(self, waiting: Mapping[str, int]) -> None:
        """See Scaling.expect. One worker for each job that waits; those first that start already."""
        for name, jobs in waiting.items():
            coming = [slot for slot in self._of(name) if slot.is_starting]
            absent = [slot for slot in self._of(name) if slot.is_absent]
            for slot in (*coming, *absent)[:jobs]:
                slot.want()

    def _of(self, environment_name: str) -> list[Slot]:
        return [slot for slot in self._slots.values() if slot.view().environment_name == environment_name]

    async def run(self, assignment: Assignment, *, worker: str, on_phase: OnPhase) -> Result:
        """See WorkerPool.run."""
        with self._slots[worker].in_use():
            stream = _stream(self._slots[worker].actor().run, assignment)
            result = await _result(stream, worker=worker, on_phase=on_phase)
        if isinstance(result, Artifact):
            result.manifest.worker = worker
        return result

    async def verify(self, assignment: Assignment, artifact: Artifact, *, worker: str) -> Result:
        """See WorkerPool.verify."""
        with self._slots[worker].in_use():
            return await self._verify(assignment, artifact, worker=worker)

    async def _verify(self, assignment: Assignment, artifact: Artifact, *, worker: str) -> Result:
        actor, parcel = self._slots[worker].actor(), str(uuid.uuid4())
        try:
            for digest, content in artifact.blobs.items():
                for piece in pieces_of(digest, content):
                    await actor.receive.remote(parcel, piece)
        except RayError as error:
            raise _lost(worker, error) from error
        stream = _stream(actor.verify, parcel, assignment, artifact.manifest)
        result = await _result(stream, worker=worker, on_phase=lambda _: None)
        return Artifact(manifest=result.manifest, blobs=artifact.blobs) if isinstance(result, Artifact) else result


async def _result(stream: Any, *, worker: str, on_phase: OnPhase) -> Result:
    """Returns the result that comes out of a stream of an actor. Cancelling the call ends the actor's work."""
    try:
        return await result_of(_messages(stream), on_phase=on_phase)
    except RayTaskError:
        # A defect of the farm, not a loss.
        raise
    except RayError as error:
        raise _lost(worker, error) from error
    except asyncio.CancelledError:
        ray.cancel(stream)
        raise


async def _messages(stream: Any) -> AsyncIterator[Message]:
    async for reference in stream:
        yield await reference


def _stream(method: Any, *arguments: object) -> Any:
    return method.options(num_returns="streaming", _generator_backpressure_num_objects=_PIECES_AHEAD).remote(*arguments)


def _lost(worker: str, error: RayError) -> WorkerLost:
    return WorkerLost(f"worker {worker} went away with its job: {cause_of(error)}")
