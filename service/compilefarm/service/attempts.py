"""A compile, tried again when the worker that has it is lost."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from compilefarm.core.errors import ProcessDied, WorkerLost
from compilefarm.core.pool import Artifact, Assignment, WorkerPool
from compilefarm.service.clock import Clock
from compilefarm.service.constants import read_constants
from compilefarm.service.durations import Durations
from compilefarm.service.quarantine import Quarantine
from compilefarm.service.queue import Queue
from compilefarm.service.tickets import Preempted, Ticket
from compilefarm.store.artifact_store import ArtifactStore
from compilefarm.v1.job_pb2 import CompileFailure, FailureKind, Job, Phase

log = logging.getLogger(__name__)

# Told the phase that a job enters and the worker that has it; no worker while it is queued.
OnStage = Callable[[Phase.ValueType, str], None]

# Failures that cost a worker its process, or all the time that a compile may take.
_COSTLY = (FailureKind.FAILURE_KIND_CRASHED, FailureKind.FAILURE_KIND_TIMEOUT)
# Failures of what was made of the graph: the next compile of it makes the same.
_LASTING = (
    FailureKind.FAILURE_KIND_VERIFICATION,
    FailureKind.FAILURE_KIND_NOT_SERIALIZABLE,
    FailureKind.FAILURE_KIND_OUTPUT_TOO_LARGE,
    FailureKind.FAILURE_KIND_UNEXPECTED_SOURCE,
)


class Attempts:
    """Has jobs compiled by whichever worker is free."""

    def __init__(
        self,
        *,
        pool: WorkerPool,
        queue: Queue,
        store: ArtifactStore,
        durations: Durations,
        quarantine: Quarantine,
        clock: Clock,
        max_attempts: int,
    ) -> None:
        self._pool = pool
        self._queue = queue
        self._store = store
        self._durations = durations
        self._quarantine = quarantine
        self._clock = clock
        self._max_attempts = max_attempts

    async def compile(
        self, job: Job, *, ticket: Ticket, namespace: str, on_stage: OnStage, verify: bool = True
    ) -> Artifact | CompileFailure:
        """Waits for a worker and has it compile; waits for another one if it is lost or taken back. A job of which
        processes die again is given up with that as its result.

        Args:
            job: what is compiled.
            ticket: its place in the queue.
            namespace: in which its key is quarantined if processes die of it.
            on_stage: told how it goes.
            verify: whether the artifact is checked.

        Raises:
            InvalidRequest: the worker found the request to be malformed or forbidden.
            MissingBlobs: tensors of the graph have vanished from the store while it waited.
            NoMatchingWorker: the workers that could have done it are gone.
            WorkerLost: workers were lost on this job as often as it may be tried.
        """
        while True:
            try:
                async with self._queue.worker(ticket) as worker:
                    result = await self._attempt(job, ticket=ticket, worker=worker, on_stage=on_stage, verify=verify)
                self._note_end(result, ticket=ticket, namespace=namespace)
                return result
            except Preempted:
                log.info("job %s: waits again, its worker was needed for an interactive job", ticket.key)
            except WorkerLost as error:
                if failure := self._note_loss(error, worker=worker, ticket=ticket, namespace=namespace):
                    return failure
            on_stage(Phase.PHASE_QUEUED, "")

    async def verify(
        self, artifact: Artifact, *, job: Job, ticket: Ticket, on_stage: OnStage
    ) -> Artifact | CompileFailure:
        """Waits for a worker and has it check an artifact; waits for another one if it is lost or taken back.

        Raises:
            MissingBlobs, NoMatchingWorker, WorkerLost: as `compile`.
        """
        while True:
            try:
                async with self._queue.worker(ticket) as worker:
                    on_stage(Phase.PHASE_VERIFYING, worker)
                    blobs = await read_constants(job, store=self._store)
                    assignment = Assignment(key=ticket.key, job=job, blobs=blobs)
                    return await self._pool.verify(assignment, artifact, worker=worker)
            except Preempted:
                log.info("job %s: its check waits again, its worker was needed for an interactive job", ticket.key)
            except WorkerLost as error:
                ticket.losses.append(worker)
                log.warning("worker %s was lost on the check of %s: %s", worker, ticket.key, error)
                if len(ticket.losses) >= self._max_attempts:
                    raise
            on_stage(Phase.PHASE_QUEUED, "")

    async def _attempt(
        self, job: Job, *, ticket: Ticket, worker: str, on_stage: OnStage, verify: bool
    ) -> Artifact | CompileFailure:
        started_seconds = self._clock.monotonic()
        blobs = await read_constants(job, store=self._store)
        assignment = Assignment(key=ticket.key, job=job, blobs=blobs, verify=verify)
        result = await self._pool.run(assignment, worker=worker, on_phase=partial(_tell, on_stage, worker))
        if isinstance(result, Artifact):
            self._durations.note(ticket.kind, seconds=self._clock.monotonic() - started_seconds)
        return result

    def _note_end(self, result: Artifact | CompileFailure, *, ticket: Ticket, namespace: str) -> None:
        if isinstance(result, CompileFailure) and result.kind in _COSTLY:
            cause = f"{result.message}\n{result.log_tail}"
            self._quarantine.note_death(ticket.key, namespace=namespace, cause=cause, kind=result.kind)
        elif isinstance(result, CompileFailure) and result.kind in _LASTING:
            self._quarantine.note_refusal(ticket.key, namespace=namespace, failure=result)
        else:
            self._quarantine.note_survival(ticket.key, namespace=namespace)

    def _note_loss(self, error: WorkerLost, *, worker: str, ticket: Ticket, namespace: str) -> CompileFailure | None:
        """Decides whether the job is tried again: None if it is."""
        ticket.losses.append(worker)
        log.warning("worker %s was lost on %s, attempt %d: %s", worker, ticket.key, len(ticket.losses), error)
        if isinstance(error, ProcessDied):
            quarantined = self._quarantine.note_death(ticket.key, namespace=namespace, cause=str(error))
            if quarantined is not None:
                log.warning("job %s: quarantined until %s", ticket.key, quarantined.until)
                return quarantined.failure
        if len(ticket.losses) >= self._max_attempts:
            raise WorkerLost(
                f"workers were lost on this job {len(ticket.losses)} times ({', '.join(ticket.losses)}): {error}; "
                "compile it locally, and see the log of the service"
            ) from error
        return None


def _tell(on_stage: OnStage, worker: str, phase: Phase.ValueType) -> None:
    on_stage(phase, worker)
