"""Schedules verifications of artifacts, and withdraws those that fail.

A verification before an artifact is served is part of its compile. One that comes after is a job of its own: it waits
for a worker behind everything else, makes room for interactive jobs, and is begun anew when the artifact is next asked
for if the service goes down meanwhile. What it finds is kept as a Check beside the manifest, which never changes. An
artifact that fails is withdrawn, and the next one of its key is verified before it is served.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Literal

from compilefarm.core.artifacts import digest_of_manifest
from compilefarm.core.errors import Busy, Draining, StoreUnavailable
from compilefarm.core.pool import Artifact
from compilefarm.service.active_job import ActiveJob, JobObserver, Purpose, State
from compilefarm.service.allowances import Allowance
from compilefarm.service.attempts import Attempts
from compilefarm.service.clock import Clock, pause
from compilefarm.service.priorities import Priority
from compilefarm.service.queue import Queue
from compilefarm.service.requests import AdmittedRequest
from compilefarm.service.roles import Role
from compilefarm.service.waiters import Waiters
from compilefarm.service.withdrawals import Withdrawals
from compilefarm.store.artifact_store import ArtifactStore
from compilefarm.v1.job_pb2 import PHASE_VERIFYING, CompileFailure, FailureKind, Job
from compilefarm.v1.manifest_pb2 import (
    VERIFY_TIME_AFTER,
    VERIFY_TIME_BEFORE,
    VERIFY_TIME_NEVER,
    Check,
    Manifest,
    VerifyTime,
)

log = logging.getLogger(__name__)

Verify = Literal["before", "after", "off"]
_TIMES: dict[Verify, VerifyTime.ValueType] = {
    "before": VERIFY_TIME_BEFORE,
    "after": VERIFY_TIME_AFTER,
    "off": VERIFY_TIME_NEVER,
}

# Verifications that are known to be done without a look into the store, and as many that could not be done.
_MOST_REMEMBERED = 10_000
# What could not be done is not begun again within this time, however often the artifact is asked for: it costs a look
# into the store, perhaps a worker, and a line of the log.
_PAUSE_SECONDS = 60.0


class Verifications:
    """Schedules verifications.

    Args:
        verify: when.
        store: where they lie.
        queue: where these jobs wait for workers.
        attempts: has them done.
        withdrawals: takes out of use what fails.
        memory: bounds what those that wait take of it, on the accounts of those for whom they began.
        clock: time.
        observers: are told of each job.
    """

    def __init__(
        self,
        *,
        verify: Verify,
        store: ArtifactStore,
        queue: Queue,
        attempts: Attempts,
        withdrawals: Withdrawals,
        memory: Allowance,
        clock: Clock,
        observers: Sequence[JobObserver],
    ) -> None:
        self._memory = memory
        self._verify = verify
        self._store = store
        self._queue = queue
        self._attempts = attempts
        self._withdrawals = withdrawals
        self._clock = clock
        self._observers = observers
        # By the digest of the manifest.
        self._running: dict[str, tuple[ActiveJob, asyncio.Task[None]]] = {}
        # In the order in which they were done. What is forgotten here is found in the store.
        self._done: dict[str, None] = {}
        # When one ended that could not be done.
        self._ended_seconds: dict[str, float] = {}

    def running(self) -> list[ActiveJob]:
        """The verifications that wait for a worker, or have one, in order of arrival."""
        return [job for job, _ in self._running.values()]

    async def time_for(self, key: str, *, namespaces: Sequence[str]) -> VerifyTime.ValueType:
        """Returns when the next artifact of a key is verified: before it is served, if one failed in these namespaces.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        if self._verify != "before":
            found = await self._store.find_checks(key, namespaces=namespaces)
            if any(check.HasField("failed") for check in found):
                return VERIFY_TIME_BEFORE
        return _TIMES[self._verify]

    def follow(self, manifest: Manifest, *, request: AdmittedRequest) -> None:
        """Has an artifact verified that is being served, unless that was done, or is not wanted. The sizes for which it
        is verified are those of the request: of one that may decide what becomes of the artifact.

        Args:
            manifest: of the artifact.
            request: for which it is served.
        """
        if self._verify != "after" or manifest.HasField("verification") or manifest.verify_time != VERIFY_TIME_AFTER:
            return
        digest = digest_of_manifest(manifest)
        is_known = digest in self._running or digest in self._done or self._is_paused(digest)
        if not is_known and _may_decide(request, manifest):
            # Too many wait: it is verified when it is asked for again.
            with suppress(Busy), ExitStack() as stack:
                stack.enter_context(self._memory.using(request.caller.account))(request.held_bytes)
                task = self._begin(manifest, request=request, digest=digest)
                held = stack.pop_all()
                task.add_done_callback(lambda _: held.close())

    def _begin(self, manifest: Manifest, *, request: AdmittedRequest, digest: str) -> asyncio.Task[None]:
        job = ActiveJob(
            request,
            namespace=manifest.namespace,
            tenant="",
            waiters=Waiters(Priority.PREWARM, clock=self._clock),
            clock=self._clock,
            purpose=Purpose.VERIFY,
            observers=self._observers,
        )
        task = job.begin(partial(self._run, manifest=manifest, digest=digest))
        self._running[digest] = job, task
        task.add_done_callback(lambda _: self._leave(job, digest=digest))
        return task

    def _leave(self, job: ActiveJob, *, digest: str) -> None:
        del self._running[digest]
        self._ended_seconds.pop(digest, None)
        if job.error is not None:
            self._ended_seconds[digest] = self._clock.monotonic()
            if len(self._ended_seconds) > _MOST_REMEMBERED:
                del self._ended_seconds[next(iter(self._ended_seconds))]

    def _is_paused(self, digest: str) -> bool:
        ended_seconds = self._ended_seconds.get(digest)
        return ended_seconds is not None and self._clock.monotonic() - ended_seconds < _PAUSE_SECONDS

    async def keep_failure(self, failure: CompileFailure, *, job: ActiveJob) -> None:
        """Keeps why an artifact is not served, if it failed its verification, with what it was made for: that is a
        defect.
        """
        if failure.kind == FailureKind.FAILURE_KIND_VERIFICATION:
            try:
                await self._store.put_check(self._ended(_check_of(job, failed=failure, request=job.job)))
            except StoreUnavailable as error:
                # The client is told all the same.
                log.error("job %s: why its artifact is not served could not be kept: %s", job.key, error)

    async def close(self) -> None:
        """Gives up those that are not done."""
        running = list(self._running.values())
        for job, _ in running:
            job.give_up(Draining("the service is going down"))
        await asyncio.gather(*(task for _, task in running), return_exceptions=True)

    async def _run(self, job: ActiveJob, *, manifest: Manifest, digest: str) -> None:
        found = await self._store.find_checks(job.key, namespaces=[job.namespace])
        check = next((each for each in found if each.manifest_digest == digest), None)
        state = State.FOUND
        if check is None:
            check = await self._find_out(job, manifest=manifest, digest=digest)
            job.store()
            await (self._withdrawals.keep(check) if check.HasField("failed") else self._store.put_check(check))
            state = State.STORED
        if check.HasField("failed") and await self._withdrawals.withdraw_artifact(
            manifest, reason=check.failed.message
        ):
            state = State.FAILED
        self._note_done(digest)
        job.finish(state, check.failed if state is State.FAILED else manifest)

    def _note_done(self, digest: str) -> None:
        self._done[digest] = None
        while len(self._done) > _MOST_REMEMBERED:
            del self._done[next(iter(self._done))]

    async def _find_out(self, job: ActiveJob, *, manifest: Manifest, digest: str) -> Check:
        await self._wait_for_room(job)
        job.queue()
        started_seconds = self._clock.monotonic()
        found = await self._attempts.verify(job, manifest)
        check = _check_of(job, manifest_digest=digest)
        check.seconds = _seconds(found, otherwise=self._clock.monotonic() - started_seconds)
        if isinstance(found, CompileFailure):
            check.failed.CopyFrom(found)
        else:
            check.passed.CopyFrom(found.manifest.verification)
        return self._ended(check)

    async def _wait_for_room(self, job: ActiveJob) -> None:
        while True:
            try:
                return self._queue.require_room(job)
            except Busy as busy:
                await pause(busy.retry_after_seconds, clock=self._clock)

    def _ended(self, check: Check) -> Check:
        check.ended.FromDatetime(self._clock.now())
        return check


def _may_decide(request: AdmittedRequest, manifest: Manifest) -> bool:
    """Returns whether a request may decide for which values of its symbols an artifact is verified."""
    caller = request.caller
    return not request.job.hints or (caller.role >= Role.COMPILE and caller.namespace == manifest.namespace)


def _check_of(
    job: ActiveJob, *, manifest_digest: str = "", failed: CompileFailure | None = None, request: Job | None = None
) -> Check:
    return Check(key=job.key, namespace=job.namespace, manifest_digest=manifest_digest, failed=failed, request=request)


def _seconds(found: Artifact | CompileFailure, *, otherwise: float) -> float:
    timings = found.manifest.timings if isinstance(found, Artifact) else ()
    return next((timing.seconds for timing in timings if timing.phase == PHASE_VERIFYING), otherwise)
