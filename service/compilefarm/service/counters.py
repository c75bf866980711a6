"""The counters of the gateway, and the observers that increment them."""

from __future__ import annotations

from dataclasses import dataclass

from compilefarm.core.errors import Busy, Draining, FarmError, InvalidRequest, MissingBlobs, NoMatchingWorker
from compilefarm.service.active_job import ActiveJob, Purpose, State
from compilefarm.service.callers import Caller
from compilefarm.service.requests import AdmittedRequest
from compilefarm.v1.compile_service_pb2 import Outcome
from compilefarm.v1.job_pb2 import CompileFailure, FailureKind, Job
from compilefarm.v1.manifest_pb2 import Manifest

_REFUSALS = (InvalidRequest, NoMatchingWorker, MissingBlobs, Busy, Draining)


@dataclass(slots=True, kw_only=True)
class Counters:
    """Counts since the service started; the words are those of compilefarm.v1.Counters."""

    hits: int = 0
    misses: int = 0
    joins: int = 0
    compiled: int = 0
    failed: int = 0
    refused: int = 0
    quarantined: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    withdrawn: int = 0
    failed_checks: int = 0
    unexpected_sources: int = 0


class RequestCounts:
    """Observes requests and counts them. Satisfies RequestObserver and RefusalObserver."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters

    def missed(self, request: AdmittedRequest, *, joins: bool) -> None:
        """See RequestObserver.missed."""
        del request
        self._counters.misses += 1
        self._counters.joins += joins

    def answered(self, request: AdmittedRequest, *, outcome: Outcome.ValueType, manifest: Manifest | None) -> None:
        """See RequestObserver.answered."""
        del request, manifest
        self._counters.hits += outcome == Outcome.OUTCOME_HIT
        self._counters.quarantined += outcome == Outcome.OUTCOME_QUARANTINED

    def refused(self, job: Job, *, caller: Caller, error: FarmError) -> None:
        """See RefusalObserver.refused."""
        del job, caller
        self._counters.refused += isinstance(error, _REFUSALS)


class JobCounts:
    """Observes jobs and counts what compiles give. Satisfies JobObserver."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters

    def changed(self, job: ActiveJob, *, before: State, cause: Exception | None) -> None:
        """See JobObserver.changed."""
        del cause
        if job.purpose is not Purpose.COMPILE:
            return
        # An artifact that could not be stored is lost.
        is_lost = job.state is State.ENDED and before is State.STORING
        self._counters.compiled += job.state is State.STORED
        # What failed at another gateway is counted there.
        has_failed = job.state is State.FAILED and not job.was_elsewhere
        self._counters.failed += has_failed or is_lost
        if has_failed and isinstance(job.result, CompileFailure):
            self._counters.failed_checks += job.result.kind == FailureKind.FAILURE_KIND_VERIFICATION
            self._counters.unexpected_sources += job.result.kind == FailureKind.FAILURE_KIND_UNEXPECTED_SOURCE
