"""A compile, tried again when the worker that has it is lost."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from compilefarm.core.errors import WorkerLost
from compilefarm.core.pool import Artifact, Assignment, WorkerPool
from compilefarm.service.constants import read_constants
from compilefarm.service.queue import Queue, Ticket
from compilefarm.store.artifact_store import ArtifactStore
from compilefarm.v1.job_pb2 import CompileFailure, Job, Phase

_log = logging.getLogger("compilefarm.service")

# Told the phase that a job enters and the worker that has it; no worker while it is queued.
OnStage = Callable[[Phase.ValueType, str], None]


class Attempts:
    """Has jobs compiled by whichever worker is free."""

    def __init__(self, *, pool: WorkerPool, queue: Queue, store: ArtifactStore, max_attempts: int) -> None:
        self._pool = pool
        self._queue = queue
        self._store = store
        self._max_attempts = max_attempts

    async def compile(self, job: Job, *, key: str, on_stage: OnStage) -> Artifact | CompileFailure:
        """Waits for a worker and has it compile; waits for another one if it is lost.

        Raises:
            InvalidRequest: the worker found the request to be malformed or forbidden.
            MissingBlobs: tensors of the graph have vanished from the store while it waited.
            NoMatchingWorker: no worker can do it, or those that could are gone.
            Busy: too many jobs wait already.
            WorkerLost: workers were lost on this job as often as it may be tried.
        """
        ticket = self._queue.enrol(key, environment=job.environment)
        while True:
            async with self._queue.worker(ticket) as worker:
                blobs = await read_constants(job, store=self._store)
                assignment = Assignment(key=key, job=job, blobs=blobs)
                try:
                    on_phase = partial(_tell, on_stage, worker)
                    return await self._pool.run(assignment, worker=worker, on_phase=on_phase)
                except WorkerLost as error:
                    self._note_loss(error, worker=worker, ticket=ticket)
            on_stage(Phase.PHASE_QUEUED, "")

    def _note_loss(self, error: WorkerLost, *, worker: str, ticket: Ticket) -> None:
        ticket.losses.append(worker)
        _log.warning("worker %s was lost on %s, attempt %d: %s", worker, ticket.key, len(ticket.losses), error)
        if len(ticket.losses) >= self._max_attempts:
            raise WorkerLost(
                f"workers were lost on this job {len(ticket.losses)} times ({', '.join(ticket.losses)}): {error}; "
                "the job itself may be what ends them: compile it locally, and see the log of the service"
            ) from error


def _tell(on_stage: OnStage, worker: str, phase: Phase.ValueType) -> None:
    on_stage(phase, worker)
