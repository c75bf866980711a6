"""Observers that log requests and jobs."""

from __future__ import annotations

import logging
from collections.abc import Callable

from compilefarm.core.artifacts import blobs_of
from compilefarm.core.enum_words import word_of
from compilefarm.core.errors import WorkerLost
from compilefarm.service.active_job import ActiveJob, Purpose, State
from compilefarm.service.leases import Preempted
from compilefarm.service.requests import AdmittedRequest
from compilefarm.v1.compile_service_pb2 import Outcome
from compilefarm.v1.job_pb2 import CompileFailure, FailureKind
from compilefarm.v1.manifest_pb2 import Manifest

log = logging.getLogger(__name__)


class RequestLog:
    """Observes requests and logs what a job's own lines do not say. Satisfies RequestObserver."""

    def missed(self, request: AdmittedRequest, *, joins: bool) -> None:
        """See RequestObserver.missed."""
        if joins:
            log.info("job %s: joined by another request", request.key.text)

    def answered(self, request: AdmittedRequest, *, outcome: Outcome.ValueType, manifest: Manifest | None) -> None:
        """See RequestObserver.answered."""


class JobLog:
    """Observes jobs and logs them. Satisfies JobObserver.

    Args:
        describe_worker: says of a worker, by its name, where it is and what it compiles for.
    """

    def __init__(self, describe_worker: Callable[[str], str]) -> None:
        self._describe_worker = describe_worker

    def changed(self, job: ActiveJob, *, before: State, cause: Exception | None) -> None:
        """See JobObserver.changed."""
        if before is State.RUNNING and job.state is State.QUEUED and cause is not None:
            _log_loss(job, cause)
        elif job.state is State.RUNNING:
            log.info("job %s: %s has it (%s)", job.key, job.worker, self._describe_worker(job.worker))
        elif job.purpose is Purpose.VERIFY:
            _log_verification(job)
        else:
            _log_compile(job)


def _log_loss(job: ActiveJob, cause: Exception) -> None:
    if isinstance(cause, Preempted):
        log.info("job %s: waits again, its worker was needed for an interactive job", job.key)
    else:
        attempt = len(job.lost_workers)
        log.warning("worker %s was lost on %s, attempt %d: %s", job.worker, job.key, attempt, cause)


def _log_compile(job: ActiveJob) -> None:
    if job.state is State.QUEUED:
        log.info("job %s: %d nodes, queued", job.key, len(job.job.graph.nodes))
    elif job.state is State.ELSEWHERE:
        log.info("job %s: waits for %s", job.key, job.stage.waits_for)
    elif job.state is State.STORED and isinstance(job.result, Manifest):
        size_bytes = sum(blob.size_bytes for blob in blobs_of(job.result))
        log.info("job %s: %s made %d bytes in %.1f s", job.key, job.worker, size_bytes, job.elapsed_seconds)
    elif job.state is State.FAILED and isinstance(job.result, CompileFailure):
        _log_failure(job, job.result)
    elif isinstance(job.error, WorkerLost):
        log.warning("job %s: given up: %s", job.key, job.error)


def _log_failure(job: ActiveJob, failure: CompileFailure) -> None:
    if failure.kind == FailureKind.FAILURE_KIND_UNEXPECTED_SOURCE:
        log.error("job %s: an attack on this farm, or a fault of it: %s", job.key, failure.message)
    reason = word_of(FailureKind, failure.kind, prefix="FAILURE_KIND_")
    log.warning("job %s: no artifact after %.1f s: %s %s", job.key, job.elapsed_seconds, reason, failure.message)
    if failure.log_tail:
        log.warning("job %s: the end of what its process printed:\n%s", job.key, failure.log_tail)


def _log_verification(job: ActiveJob) -> None:
    if job.state is State.STORED:
        log.info("job %s: its artifact was verified, in %.1f s", job.key, job.elapsed_seconds)
    elif job.state is State.ENDED:
        log.warning("job %s: its artifact is verified when it is next asked for: %s", job.key, job.error)
