"""When artifacts are checked, and what becomes of those that fail.

A check before an artifact is served is part of its compile. One that comes after is a job of its own: it waits for a
worker behind everything else, makes room for interactive jobs, and is begun anew when the artifact is next asked for if
the service goes down meanwhile. What it finds is kept beside the manifest, which never changes. An artifact that fails
is withdrawn, and the next one of its key is checked before it is served.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import Literal

from compilefarm.core.artifacts import blobs_of, digest_of_manifest
from compilefarm.core.errors import Busy, FarmError, StoreUnavailable
from compilefarm.core.pool import Artifact
from compilefarm.service.attempts import Attempts
from compilefarm.service.clock import Clock, pause
from compilefarm.service.counters import Counters
from compilefarm.service.demand import Demand
from compilefarm.service.durations import Kind
from compilefarm.service.flights import Stage
from compilefarm.service.priorities import Priority
from compilefarm.service.queue import Queue
from compilefarm.service.tickets import Ticket
from compilefarm.store.artifact_store import ArtifactStore
from compilefarm.v1.job_pb2 import PHASE_VERIFYING, CompileFailure, FailureKind, Job, Phase
from compilefarm.v1.manifest_pb2 import (
    VERIFY_TIME_AFTER,
    VERIFY_TIME_BEFORE,
    VERIFY_TIME_NEVER,
    Check,
    Manifest,
    Verification,
    VerifyTime,
)

log = logging.getLogger(__name__)

Verify = Literal["before", "after", "off"]
_TIMES: dict[Verify, VerifyTime.ValueType] = {
    "before": VERIFY_TIME_BEFORE,
    "after": VERIFY_TIME_AFTER,
    "off": VERIFY_TIME_NEVER,
}

# Checks that are known to be done without a look into the store.
_MOST_REMEMBERED = 10_000


class RunningCheck:
    """A check on its way.

    Attributes:
        key, namespace: of the artifact.
        started_seconds: when it began, by the clock.
        ticket: its place in the queue; None before it has one.
        stage: where it stands.
    """

    def __init__(self, manifest: Manifest, *, clock: Clock) -> None:
        self.key = manifest.key
        self.namespace = manifest.namespace
        self._clock = clock
        self.started_seconds = clock.monotonic()
        self.ticket: Ticket | None = None
        self.enter(Phase.PHASE_QUEUED)

    def enter(self, phase: Phase.ValueType, worker: str = "") -> None:
        """Notes what is being done, and by whom."""
        self.stage = Stage(phase=phase, worker=worker, since_seconds=self._clock.monotonic())


class Checks:
    """Has artifacts checked.

    Args:
        verify: when.
        store: where they lie.
        queue: where checks wait for workers.
        attempts: has them done.
        counters: counts those that were withdrawn.
        clock: time.
    """

    def __init__(
        self,
        *,
        verify: Verify,
        store: ArtifactStore,
        queue: Queue,
        attempts: Attempts,
        counters: Counters,
        clock: Clock,
    ) -> None:
        self._verify = verify
        self._store = store
        self._queue = queue
        self._attempts = attempts
        self._counters = counters
        self._clock = clock
        # By the digest of the manifest.
        self._running: dict[str, tuple[RunningCheck, asyncio.Task[None]]] = {}
        # In the order in which they were done. What is forgotten here is found in the store.
        self._done: dict[str, None] = {}

    def running(self) -> list[RunningCheck]:
        """Those that wait for a worker, or have one, in the order in which they came."""
        return [check for check, _ in self._running.values()]

    async def time_for(self, key: str, *, namespaces: Sequence[str]) -> VerifyTime.ValueType:
        """When the next artifact of a key is to be checked. What failed in one of some namespaces makes that sooner.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        if self._verify != "before":
            found = await self._store.find_checks(key, namespaces=namespaces)
            if any(check.HasField("failed") for check in found):
                return VERIFY_TIME_BEFORE
        return _TIMES[self._verify]

    def follow(self, manifest: Manifest, *, job: Job, kind: Kind) -> None:
        """Has an artifact checked that is being served, unless that was done, or is not wanted."""
        if self._verify != "after" or manifest.HasField("verification") or manifest.verify_time != VERIFY_TIME_AFTER:
            return
        digest = digest_of_manifest(manifest)
        if digest not in self._running and digest not in self._done:
            check = RunningCheck(manifest, clock=self._clock)
            work = self._follow(check, manifest=manifest, digest=digest, job=job, kind=kind)
            task = asyncio.create_task(work, name=f"check of {manifest.key}")
            self._running[digest] = check, task
            task.add_done_callback(partial(self._end, digest, manifest.key))

    async def keep_failure(self, failure: CompileFailure, *, job: Job, key: str, namespace: str) -> None:
        """Keeps why an artifact is not served, if it failed its check, with what it was made for: that is a defect."""
        if failure.kind == FailureKind.FAILURE_KIND_VERIFICATION:
            self._counters.failed_checks += 1
            try:
                await self._store.put_check(self._check(key, namespace=namespace, failed=failure, request=job))
            except StoreUnavailable as error:
                # The client is told all the same.
                log.error("job %s: why its artifact is not served could not be kept: %s", key, error)

    async def withdraw(self, key: str, *, namespace: str, reason: str) -> bool:
        """Takes the artifact of a key out of use that was found wrong elsewhere. The next one is checked before it is
        served. False if there is none in the namespace.

        Raises:
            StoreUnavailable: the store cannot be read or written.
        """
        manifest = await self._store.find_manifest(key, namespaces=[namespace])
        if manifest is None:
            return False
        failure = CompileFailure(kind=FailureKind.FAILURE_KIND_VERIFICATION, message=reason)
        digest = digest_of_manifest(manifest)
        # Before anything is done about it: whoever is killed in between leaves the reason.
        await self._store.put_check(self._check(key, namespace=namespace, manifest_digest=digest, failed=failure))
        if not await self._store.withdraw(manifest, reason=reason):
            return False
        self._counters.withdrawn += 1
        log.error("job %s: its artifact is withdrawn: %s", key, reason)
        return True

    async def close(self) -> None:
        """Gives up the checks that are not done."""
        tasks = [task for _, task in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, running: RunningCheck, *, manifest: Manifest, digest: str, job: Job, kind: Kind) -> None:
        key = manifest.key
        try:
            found = await self._store.find_checks(key, namespaces=[manifest.namespace])
            check = next((each for each in found if each.manifest_digest == digest), None)
            if check is None:
                check = await self._find_out(running, manifest=manifest, digest=digest, job=job, kind=kind)
                # Before anything is done about it: whoever is killed in between leaves the reason.
                await self._store.put_check(check)
            if check.HasField("failed") and await self._store.withdraw(manifest, reason=check.failed.message):
                self._counters.withdrawn += 1
                log.error("job %s: its artifact failed its check and is withdrawn: %s", key, check.failed.message)
            self._note_done(digest)
        except FarmError as error:
            log.warning("job %s: its artifact is checked when it is next asked for: %s", key, error)

    def _note_done(self, digest: str) -> None:
        self._done[digest] = None
        while len(self._done) > _MOST_REMEMBERED:
            del self._done[next(iter(self._done))]

    async def _find_out(self, running: RunningCheck, *, manifest: Manifest, digest: str, job: Job, kind: Kind) -> Check:
        key, namespace = manifest.key, manifest.namespace
        contents = {blob.digest: await self._store.get_blob(blob.digest) for blob in blobs_of(manifest)}
        running.ticket = await self._enrol(key, job=job, kind=kind)
        started_seconds = self._clock.monotonic()
        artifact = Artifact(manifest=manifest, blobs=contents)
        found = await self._attempts.verify(artifact, job=job, ticket=running.ticket, on_stage=running.enter)
        seconds = _seconds(found, otherwise=self._clock.monotonic() - started_seconds)
        if isinstance(found, CompileFailure):
            return self._check(key, namespace=namespace, manifest_digest=digest, failed=found, seconds=seconds)
        log.info("job %s: its artifact passed its check in %.1f s", key, seconds)
        passed = found.manifest.verification
        return self._check(key, namespace=namespace, manifest_digest=digest, passed=passed, seconds=seconds)

    async def _enrol(self, key: str, *, job: Job, kind: Kind) -> Ticket:
        while True:
            try:
                demand = Demand(tenant="", priority=Priority.PREWARM)
                return self._queue.enrol(key, environment=job.environment, demand=demand, kind=kind)
            except Busy as busy:
                await pause(busy.retry_after_seconds, clock=self._clock)

    def _check(
        self,
        key: str,
        *,
        namespace: str,
        manifest_digest: str = "",
        passed: Verification | None = None,
        failed: CompileFailure | None = None,
        seconds: float = 0.0,
        request: Job | None = None,
    ) -> Check:
        check = Check(
            key=key,
            namespace=namespace,
            manifest_digest=manifest_digest,
            passed=passed,
            failed=failed,
            seconds=seconds,
            request=request,
        )
        check.ended.FromDatetime(self._clock.now())
        return check

    def _end(self, digest: str, key: str, task: asyncio.Task[None]) -> None:
        del self._running[digest]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("job %s: a defect ended the check of its artifact", key, exc_info=error)


def _seconds(found: Artifact | CompileFailure, *, otherwise: float) -> float:
    timings = found.manifest.timings if isinstance(found, Artifact) else ()
    return next((timing.seconds for timing in timings if timing.phase == PHASE_VERIFYING), otherwise)
