"""What happens to a job that is to compile: looked up, refused, or compiled and stored."""

from __future__ import annotations

from compilefarm.service.active_job import ActiveJob, State
from compilefarm.service.attempts import Attempts
from compilefarm.service.durations import Durations
from compilefarm.service.preconditions import Preconditions
from compilefarm.service.publishing import Publisher
from compilefarm.service.quarantine import Quarantine
from compilefarm.service.queue import Queue
from compilefarm.service.verifications import Verifications
from compilefarm.store.artifact_store import ArtifactStore
from compilefarm.v1.job_pb2 import CompileFailure
from compilefarm.v1.manifest_pb2 import VERIFY_TIME_AFTER, VerifyTime


class Compilation:
    """Runs jobs, from the lookup in the store to the result.

    Args:
        store: has artifacts.
        quarantine: has failures that are remembered.
        preconditions: of a compile.
        queue: has room for a job, or not.
        attempts: has workers compile.
        publisher: stores what they make.
        verifications: says when an artifact is verified, and has it verified later.
        durations: learns how long stored artifacts took.
    """

    def __init__(
        self,
        *,
        store: ArtifactStore,
        quarantine: Quarantine,
        preconditions: Preconditions,
        queue: Queue,
        attempts: Attempts,
        publisher: Publisher,
        verifications: Verifications,
        durations: Durations,
    ) -> None:
        self._store = store
        self._quarantine = quarantine
        self._preconditions = preconditions
        self._queue = queue
        self._attempts = attempts
        self._publisher = publisher
        self._verifications = verifications
        self._durations = durations

    async def run(self, job: ActiveJob) -> None:
        """Does a job, which is over then.

        Raises:
            FarmError: as Broker.compile.
        """
        if not await self._is_answered(job):
            verify_time = await self._prepare(job)
            made = await self._attempts.compile(job, verify=verify_time != VERIFY_TIME_AFTER)
            job.store()
            if isinstance(made, CompileFailure):
                await self._verifications.keep_failure(made, job=job)
                job.finish(State.FAILED, made)
            else:
                manifest = await self._publisher.publish(made, job=job, verify_time=verify_time)
                self._verifications.follow(manifest, request=job.request)
                job.finish(State.STORED, manifest)

    async def _is_answered(self, job: ActiveJob) -> bool:
        """Returns whether a job is over already: an artifact is stored that fits, or a failure is remembered."""
        namespaces = job.request.caller.namespaces
        stored = await self._store.find_manifest(job.key, namespaces=namespaces, hints=job.job.hints)
        if stored is not None:
            self._durations.note_stored(job.kind, stored)
            self._verifications.follow(stored, request=job.request)
            job.finish(State.FOUND, stored)
        elif (found := self._quarantine.find(job.key, namespaces=namespaces, hints=job.job.hints)) is not None:
            job.finish(State.REMEMBERED, found.failure)
        return job.is_over

    async def _prepare(self, job: ActiveJob) -> VerifyTime.ValueType:
        """Queues a job, if it may be compiled, and returns when its artifact is to be verified."""
        await self._preconditions.require(job)
        verify_time = await self._verifications.time_for(job.key, namespaces=job.request.caller.namespaces)
        self._queue.require_room(job)
        job.queue()
        return verify_time
