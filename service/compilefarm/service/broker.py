"""Answers requests for artifacts: from the store, from a job that is under way, or by having one begun."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Protocol

from compilefarm.core.errors import Busy, FarmError, InvalidRequest, NotStored
from compilefarm.service.active_job import ActiveJob, State
from compilefarm.service.active_jobs import ActiveJobs
from compilefarm.service.call_limits import MOST_CALLS
from compilefarm.service.fair_semaphore import FairSemaphore
from compilefarm.service.progress import ProgressMeter
from compilefarm.service.requests import AdmittedRequest, Event
from compilefarm.service.verifications import Verifications
from compilefarm.store.artifact_store import ArtifactStore
from compilefarm.store.guard_turns import GuardTurns
from compilefarm.v1.compile_service_pb2 import Accepted, Finished, Outcome
from compilefarm.v1.job_pb2 import CompileFailure
from compilefarm.v1.manifest_pb2 import KeyPart, Manifest


class RequestObserver(Protocol):
    """Observes the outcome of requests, once each."""

    def missed(self, request: AdmittedRequest, *, joins: bool) -> None:
        """Nothing was stored for it. `joins`: it waits for a job that another one began."""

    def answered(self, request: AdmittedRequest, *, outcome: Outcome.ValueType, manifest: Manifest | None) -> None:
        """A request was answered, with an artifact unless that is None."""


class Broker:
    """Finds artifacts or has them made.

    Args:
        store: has artifacts.
        jobs: make others.
        verifications: of what is served.
        meter: tells where jobs stand.
        observers: are told how requests fare.
    """

    def __init__(
        self,
        *,
        store: ArtifactStore,
        jobs: ActiveJobs,
        verifications: Verifications,
        meter: ProgressMeter,
        observers: Sequence[RequestObserver],
    ) -> None:
        self._store = store
        self._jobs = jobs
        self._verifications = verifications
        self._meter = meter
        self._observers = observers
        self._guard_turns = GuardTurns()
        # Thousands may wait for one job, and each that did not begin it is asked for.
        self._comparisons = FairSemaphore(
            "comparing sizes with artifacts", places=1, account_places=1, account_waiting=MOST_CALLS
        )

    async def lookup(self, request: AdmittedRequest) -> Manifest:
        """The artifact for a job, if it is stored where the caller may read.

        Raises:
            NotStored: it is not.
            StoreUnavailable: the store cannot be read.
        """
        key, namespaces = request.key.text, request.caller.namespaces
        manifest = await self._store.find_manifest(key, namespaces=namespaces, hints=request.job.hints)
        if manifest is None:
            self._note_miss(request, joins=False)
            raise NotStored(f"nothing that fits is stored under {key}; ask for a compile")
        self._note_answer(request, outcome=Outcome.OUTCOME_HIT, manifest=manifest)
        self._verifications.follow(manifest, request=request)
        return manifest

    async def compile(self, request: AdmittedRequest) -> AsyncGenerator[Event, None]:
        """The artifact for a job, made if need be: yields Accepted, then any number of Progress, then Finished.

        The job goes on for a while when the iterator is closed, in case the caller comes back.

        Raises:
            InvalidRequest: a worker found that the job asks for what is not allowed.
            MissingBlobs: tensors that the graph holds are not stored.
            NoMatchingWorker: no worker can do it.
            Busy: too many jobs wait already.
            JobCancelled: an operator ended the job.
            Draining: the service is going down.
            WorkerLost: workers were lost on the job as often as it may be tried.
            ReadOnlyFarm: nothing fits, and this farm does not compile.
            StoreUnavailable: the store cannot be read, or the finished artifact could not be written.
        """
        accepted = missed = False
        while True:
            with self._jobs.join(request) as joined:
                # Who waits for another's job once more is told of it seldom: thousands may, each time.
                watch = self._jobs.watch_quietly if accepted and not joined.leads else self._jobs.watch
                if not accepted:
                    accepted = True
                    yield _accepted(request)
                async with aclosing(watch(joined)) as stages:
                    async for stage in stages:
                        if not missed and joined.job.stages:
                            missed = True
                            self._note_miss(request, joins=not joined.leads)
                        yield self._meter.read(joined.job, stage=stage)
            if joined.leads or await self._is_answered(joined.job, request=request):
                break
        yield self._finished(joined.job, request=request, leads=joined.leads)

    async def _is_answered(self, job: ActiveJob, *, request: AdmittedRequest) -> bool:
        """Returns whether what became of a job that another request began is an answer to this one, too; it asks again
        otherwise.

        A variant may have guards that this one does not meet, and what failed for the hints of another may succeed for
        these. A refusal may have been for the share of the other's tenant, or for its hints.
        """
        if job.error is not None:
            return not _is_personal(job.error, job=job, request=request)
        if isinstance(job.result, Manifest) and job.result.guards:
            async with self._comparisons.acquired(request.caller.account):
                return await self._guard_turns.hold(job.result.guards, request.job.hints)
        return job.state is not State.FAILED or _has_same_hints(job, request)

    def _finished(self, job: ActiveJob, *, request: AdmittedRequest, leads: bool) -> Finished:
        if job.error is not None:
            raise job.error
        outcome = _outcome(job, leads=leads)
        if isinstance(job.result, CompileFailure):
            self._note_answer(request, outcome=outcome, manifest=None)
            return Finished(outcome=outcome, failure=job.result)
        self._note_answer(request, outcome=outcome, manifest=job.result)
        return Finished(outcome=outcome, manifest=job.result)

    def _note_miss(self, request: AdmittedRequest, *, joins: bool) -> None:
        for observer in self._observers:
            observer.missed(request, joins=joins)

    def _note_answer(self, request: AdmittedRequest, *, outcome: Outcome.ValueType, manifest: Manifest | None) -> None:
        for observer in self._observers:
            observer.answered(request, outcome=outcome, manifest=manifest)


def _accepted(request: AdmittedRequest) -> Accepted:
    parts = [KeyPart(name=part.name, digest=part.digest) for part in request.key.parts]
    return Accepted(key=request.key.text, key_parts=parts)


def _is_personal(error: FarmError, *, job: ActiveJob, request: AdmittedRequest) -> bool:
    return isinstance(error, Busy) or (isinstance(error, InvalidRequest) and not _has_same_hints(job, request))


def _has_same_hints(job: ActiveJob, request: AdmittedRequest) -> bool:
    return list(job.job.hints) == list(request.job.hints)


def _outcome(job: ActiveJob, *, leads: bool) -> Outcome.ValueType:
    if job.state is State.FOUND:
        # What was not there at first was compiled by another gateway meanwhile.
        return Outcome.OUTCOME_JOINED if job.stages else Outcome.OUTCOME_HIT
    if job.state is State.REMEMBERED:
        return Outcome.OUTCOME_QUARANTINED
    return Outcome.OUTCOME_COMPILED if leads and not job.was_elsewhere else Outcome.OUTCOME_JOINED
