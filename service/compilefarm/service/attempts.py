"""Runs a job on a worker, and on another one when that worker is lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from compilefarm.core.artifacts import blobs_of
from compilefarm.core.errors import ProcessDied, WorkerLost
from compilefarm.core.pool import Artifact, Assignment, WorkerPool
from compilefarm.service.active_job import ActiveJob
from compilefarm.service.clock import Clock
from compilefarm.service.constants import read_constants
from compilefarm.service.contents import read_content
from compilefarm.service.durations import Durations
from compilefarm.service.key_leases import KeyLease
from compilefarm.service.leases import Preempted
from compilefarm.service.quarantine import Quarantine
from compilefarm.service.queue import Queue
from compilefarm.store.artifact_store import ArtifactStore
from compilefarm.v1.job_pb2 import CompileFailure, FailureKind, Phase
from compilefarm.v1.manifest_pb2 import Manifest

# Failures that cost a worker its process, or all the time that a compile may take.
_COSTLY = (FailureKind.FAILURE_KIND_CRASHED, FailureKind.FAILURE_KIND_TIMEOUT)
# Failures of what was made of the graph: the next compile of it makes the same.
_LASTING = (
    FailureKind.FAILURE_KIND_VERIFICATION,
    FailureKind.FAILURE_KIND_NOT_SERIALIZABLE,
    FailureKind.FAILURE_KIND_OUTPUT_TOO_LARGE,
    FailureKind.FAILURE_KIND_UNEXPECTED_SOURCE,
)

# What a worker does with a job, given its name.
Attempt = Callable[[str], Awaitable[Artifact | CompileFailure]]


class Attempts:
    """Runs jobs on whichever worker is free. They wait in the queue before each attempt.

    Args:
        pool: the workers.
        queue: gives them to jobs.
        store: holds the tensors of graphs.
        durations: learns how long compiles take.
        quarantine: learns of which keys processes die.
        clock: time.
        max_attempts: of a job, each of which may lose a worker.
    """

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

    async def compile(self, job: ActiveJob, *, lease: KeyLease, verify: bool) -> Artifact | CompileFailure:
        """Has a worker compile. A job of which processes die again is given up with that as its result.

        Args:
            job: the job, which is queued.
            lease: that of its key; taken when there is a worker, and kept when there is a result.
            verify: whether the artifact is verified.

        Raises:
            InvalidRequest: the worker found the request to be malformed or forbidden.
            MissingBlobs: tensors of the graph have vanished from the store while it waited.
            NoMatchingWorker: the workers that could have done it are gone.
            WorkerLost: workers were lost on this job as often as it may be tried.
            LeasedElsewhere, StoredElsewhere, StoreUnavailable: as KeyLease.take.
        """

        async def attempt(worker: str) -> Artifact | CompileFailure:
            await lease.take()
            return await self._compile(job, worker, verify=verify)

        async def note_loss(job: ActiveJob, cause: Preempted | WorkerLost) -> CompileFailure | None:
            failure = await self._note_death(job, cause)
            if failure is None:
                # While it waits again, another gateway may have a worker for it.
                await lease.release()
            return failure

        return await self._repeat(job, attempt, on_loss=note_loss)

    async def verify(self, job: ActiveJob, manifest: Manifest) -> Artifact | CompileFailure:
        """Has a worker verify an artifact, which is read from the store when the worker is there.

        Raises:
            MissingBlobs, NoMatchingWorker, WorkerLost: as `compile`.
            NotStored, StoreUnavailable: the artifact cannot be read.
        """
        return await self._repeat(job, partial(self._verify, job, manifest), on_loss=_try_again)

    async def _repeat(
        self,
        job: ActiveJob,
        attempt: Attempt,
        *,
        on_loss: Callable[[ActiveJob, Preempted | WorkerLost], Awaitable[CompileFailure | None]],
    ) -> Artifact | CompileFailure:
        """Attempts a job until there is a result. Workers that are taken back do not count as lost.

        Args:
            job: the job.
            attempt: what a worker does.
            on_loss: told of each loss, and of each worker taken back; returns the job's result if it is to be tried no
                more.
        """
        while True:
            cause: Preempted | WorkerLost
            try:
                async with self._queue.worker(job) as worker:
                    job.start(worker)
                    return await attempt(worker)
            except (Preempted, WorkerLost) as lost:
                cause = lost
            if isinstance(cause, WorkerLost):
                job.lost_workers.append(job.worker)
            if (failure := await on_loss(job, cause)) is not None:
                return failure
            if isinstance(cause, WorkerLost):
                self._require_attempts(job, cause)
            job.queue(cause=cause)

    async def _compile(self, job: ActiveJob, worker: str, *, verify: bool) -> Artifact | CompileFailure:
        started_seconds = self._clock.monotonic()
        blobs = await read_constants(job.job, store=self._store)
        assignment = Assignment(key=job.key, job=job.job, blobs=blobs, verify=verify)
        result = await self._pool.run(assignment, worker=worker, on_phase=job.enter_phase)
        if isinstance(result, Artifact):
            self._durations.note(job.kind, seconds=self._clock.monotonic() - started_seconds)
        await self._note_end(job, result)
        return result

    async def _verify(self, job: ActiveJob, manifest: Manifest, worker: str) -> Artifact | CompileFailure:
        job.enter_phase(Phase.PHASE_VERIFYING)
        contents = {blob.digest: await read_content(blob.digest, store=self._store) for blob in blobs_of(manifest)}
        blobs = await read_constants(job.job, store=self._store)
        assignment = Assignment(key=job.key, job=job.job, blobs=blobs)
        return await self._pool.verify(assignment, Artifact(manifest=manifest, blobs=contents), worker=worker)

    async def _note_end(self, job: ActiveJob, result: Artifact | CompileFailure) -> None:
        if isinstance(result, CompileFailure) and result.kind in _COSTLY:
            cause = f"{result.message}\n{result.log_tail}"
            await self._quarantine.note_death(job.key, namespace=job.namespace, cause=cause, kind=result.kind)
        elif isinstance(result, CompileFailure) and result.kind in _LASTING:
            await self._quarantine.note_refusal(job.key, namespace=job.namespace, hints=job.job.hints, failure=result)
        else:
            await self._quarantine.note_survival(job.key, namespace=job.namespace)

    async def _note_death(self, job: ActiveJob, lost: Preempted | WorkerLost) -> CompileFailure | None:
        if not isinstance(lost, ProcessDied):
            return None
        quarantined = await self._quarantine.note_death(job.key, namespace=job.namespace, cause=str(lost))
        return None if quarantined is None else quarantined.failure

    def _require_attempts(self, job: ActiveJob, lost: WorkerLost) -> None:
        if len(job.lost_workers) >= self._max_attempts:
            raise WorkerLost(
                f"workers were lost on this job {len(job.lost_workers)} times ({', '.join(job.lost_workers)}): {lost}; "
                "compile it locally, and see the log of the service"
            ) from lost


async def _try_again(_job: ActiveJob, _lost: Preempted | WorkerLost) -> None:
    """A verification is tried again, whatever was lost: what dies of an artifact is a result."""
