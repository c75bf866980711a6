"""Workers that are actors of a Ray cluster."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from ray.exceptions import RayError, RayTaskError

from compilefarm.cluster.actors import find_actors
from compilefarm.cluster.connection import disconnect, draining_nodes
from compilefarm.cluster.deliveries import outcome_of, result_of, send
from compilefarm.cluster.settings import SlotSettings
from compilefarm.cluster.slot import Slot, cause_of
from compilefarm.cluster.work import OnPhase, Result
from compilefarm.core.errors import WorkerLost
from compilefarm.core.pool import Artifact, Assignment, NoToolchains, Toolchains, WorkerView
from compilefarm.v1.admin_service_pb2 import WORKER_STATE_FAILED
from compilefarm.v1.job_pb2 import CompileFailure

# Ray does not say when a node is about to go, so it is asked.
_LOOK_SECONDS = 1.0
_NONE_KNOWN = NoToolchains()


class RayPool:
    """An actor for each slot, on the cluster that this process is connected to. Satisfies WorkerPool and Scaling of
    compilefarm.core.pool.

    Actors end with this process, and so do the jobs that they have; those of slots that have an owner go on for a
    while, so that a gateway that starts again has them.

    Args:
        slots: of the workers.
        toolchains: what is known of C++ compilers, for workers that come.
    """

    def __init__(self, slots: Sequence[SlotSettings], *, toolchains: Toolchains = _NONE_KNOWN) -> None:
        self._settings = list(slots)
        self._slots = {settings.name: Slot(settings, toolchains=toolchains) for settings in slots}
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """See WorkerPool.start."""
        found = await asyncio.to_thread(find_actors, self._settings)
        for name, slot in self._slots.items():
            slot.open(found.get(name))
        self._watch = asyncio.create_task(self._watch_nodes())
        await asyncio.gather(*(slot.attempted() for slot in self._slots.values()))
        views = self.workers()
        if views and all(view.state == WORKER_STATE_FAILED for view in views):
            problems = dict.fromkeys(str(view.problem) for view in views)
            raise RuntimeError("no worker could start on the Ray cluster:\n" + "\n".join(problems))

    async def close(self) -> None:
        """See WorkerPool.close. Ends the connection to Ray, too."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait({self._watch})
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
        """See WorkerPool.run. A worker that does the job already goes on with it."""
        slot = self._slots[worker]
        actor, kept = slot.actor(), slot.take_kept(assignment)
        with slot.in_use():
            async with _work_of(actor, kept, worker=worker) as work:
                first = await actor.begin.remote(work, assignment) if kept is None else None
                result = await result_of(actor, work, on_phase=on_phase, first=first)
        if isinstance(result, Artifact):
            result.manifest.worker = worker
        return result

    async def verify(self, assignment: Assignment, artifact: Artifact, *, worker: str) -> Result:
        """See WorkerPool.verify."""
        actor = self._slots[worker].actor()
        with self._slots[worker].in_use():
            async with _work_of(actor, None, worker=worker) as work:
                await send(actor, work, artifact.blobs)
                first = await actor.verify.remote(work, assignment, artifact.manifest)
                outcome = await outcome_of(actor, work, on_phase=lambda _: None, first=first)
        # The gateway has the blobs.
        return (
            outcome
            if isinstance(outcome, CompileFailure)
            else Artifact(manifest=outcome.manifest, blobs=artifact.blobs)
        )

    async def _watch_nodes(self) -> None:
        """Tells slots for ever whose nodes are about to go."""
        while True:
            draining = await asyncio.to_thread(draining_nodes)
            for slot in self._slots.values():
                if (until_seconds := draining.get(slot.node)) is not None:
                    slot.drain(until_seconds)
            await asyncio.sleep(_LOOK_SECONDS)


@asynccontextmanager
async def _work_of(actor: Any, kept: str | None, *, worker: str) -> AsyncIterator[str]:
    """The name of a piece of work of an actor, new unless it is one that was kept. It ends with the context.

    Raises:
        WorkerLost: the actor is gone.
    """
    name = kept or str(uuid.uuid4())
    try:
        yield name
    except RayTaskError:
        # A defect of the farm, not a loss.
        raise
    except RayError as error:
        raise WorkerLost(f"worker {worker} went away with its job: {cause_of(error)}") from error
    finally:
        # Nobody waits for that: the next piece of work does.
        actor.end.remote(name)
