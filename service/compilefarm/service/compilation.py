"""What happens to a job that is to compile: looked up, refused, or compiled and stored."""

from __future__ import annotations

from compilefarm.core.pool import Artifact
from compilefarm.service.active_job import ActiveJob, State
from compilefarm.service.attempts import Attempts
from compilefarm.service.durations import Durations
from compilefarm.service.key_leases import ForeignLease, KeyLease, KeyLeases, LeasedElsewhere, StoredElsewhere
from compilefarm.service.preconditions import Preconditions
from compilefarm.service.publishing import Publisher
from compilefarm.service.quarantine import Quarantine
from compilefarm.service.queue import Queue
from compilefarm.service.turns import Turns
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
        leases: decide which of the gateways that use the store compiles a key.
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
        leases: KeyLeases,
    ) -> None:
        self._store = store
        self._quarantine = quarantine
        self._preconditions = preconditions
        self._queue = queue
        self._attempts = attempts
        self._publisher = publisher
        self._verifications = verifications
        self._durations = durations
        self._leases = leases
        # What is stored is answered without: to look it up is brief.
        self._beginnings = Turns("beginning compiles")
        self._ends = Turns("storing artifacts")

    async def run(self, job: ActiveJob) -> None:
        """Does a job, which is over then.

        Raises:
            FarmError: as Broker.compile.
        """
        async with self._leases.of(job) as lease:
            while not await self._is_answered(job):
                await self._advance(job, lease=lease)

    async def _advance(self, job: ActiveJob, *, lease: KeyLease) -> None:
        """Takes a job to its end, or to where it has to be looked up again."""
        try:
            await self._make(job, lease=lease)
        except LeasedElsewhere as elsewhere:
            await self._wait_for(job, elsewhere.lease)
        except StoredElsewhere:
            # It is found when it is looked up again.
            return

    async def _make(self, job: ActiveJob, *, lease: KeyLease) -> None:
        account = job.request.caller.account
        async with self._beginnings.taken(account):
            verify_time = await self._prepare(job)
        made = await self._attempts.compile(job, lease=lease, verify=verify_time != VERIFY_TIME_AFTER)
        job.store()
        async with self._ends.taken(account):
            await self._keep(made, job=job, verify_time=verify_time)

    async def _keep(
        self, made: Artifact | CompileFailure, *, job: ActiveJob, verify_time: VerifyTime.ValueType
    ) -> None:
        if isinstance(made, CompileFailure):
            await self._verifications.keep_failure(made, job=job)
            job.finish(State.FAILED, made)
        else:
            manifest = await self._publisher.publish(made, job=job, verify_time=verify_time)
            self._verifications.follow(manifest, request=job.request)
            job.finish(State.STORED, manifest)

    async def _wait_for(self, job: ActiveJob, foreign: ForeignLease) -> None:
        """Waits for another gateway. A failure ends the job; after an artifact, or nothing, it is looked up again."""
        job.leave_to(foreign.session)
        failure = await self._leases.result(foreign, hints=job.job.hints)
        if failure is not None:
            job.finish(State.FAILED, failure)

    async def _is_answered(self, job: ActiveJob) -> bool:
        """Returns whether a job is over: an artifact is stored that fits, or a failure is remembered or known."""
        if job.is_over:
            return True
        namespaces = job.request.caller.namespaces
        stored = await self._store.find_manifest(
            job.key, namespaces=namespaces, hints=job.job.hints, fresh=job.was_elsewhere
        )
        if stored is not None:
            self._durations.note_stored(job.kind, stored)
            self._verifications.follow(stored, request=job.request)
            job.finish(State.FOUND, stored)
            return True
        found = await self._quarantine.find(job.key, namespaces=namespaces, hints=job.job.hints)
        if found is not None:
            job.finish(State.REMEMBERED, found.failure)
        return job.is_over

    async def _prepare(self, job: ActiveJob) -> VerifyTime.ValueType:
        """Queues a job, if it may be compiled and no other gateway does, and returns when its artifact is to be
        verified.
        """
        await self._preconditions.require(job)
        foreign = await self._leases.find_foreign(job.key, namespaces=job.request.caller.namespaces)
        if foreign is not None:
            raise LeasedElsewhere(foreign)
        verify_time = await self._verifications.time_for(job.key, namespaces=job.request.caller.namespaces)
        self._queue.require_room(job)
        job.queue()
        return verify_time
