"""An observer that measures how long jobs wait and how long their phases take."""

from __future__ import annotations

from collections import Counter
from typing import Any

from prometheus_client import CollectorRegistry, Histogram

from compilefarm.core.enum_words import word_of
from compilefarm.service.active_job import ActiveJob, Purpose, State
from compilefarm.service.clock import Clock
from compilefarm.v1.job_pb2 import CompileFailure, FailureKind, Phase

_BUCKETS_SECONDS = (0.1, 0.3, 1, 3, 10, 30, 60, 120, 300, 600, 1800, 3600)


class JobMetrics:
    """Observes jobs, and measures compiles when they are over. Satisfies JobObserver.

    Args:
        registry: where the figures are kept.
        clock: that of the jobs.
    """

    def __init__(self, registry: CollectorRegistry, *, clock: Clock) -> None:
        self._clock = clock
        self._queue_wait = Histogram(
            "compilefarm_queue_wait_seconds",
            "How long jobs waited for a worker, all attempts together",
            ["priority"],
            buckets=_BUCKETS_SECONDS,
            registry=registry,
        )
        self._phase = Histogram(
            "compilefarm_phase_seconds",
            "How long workers took for each phase of a job, all attempts together, by how the job ended",
            ["phase", "outcome"],
            buckets=_BUCKETS_SECONDS,
            registry=registry,
        )

    def changed(self, job: ActiveJob, *, before: State, cause: Exception | None) -> None:
        """See JobObserver.changed. A job that found what it wanted in the store has no stages."""
        del before, cause
        if job.is_over and job.stages and job.purpose is Purpose.COMPILE:
            self._measure(job)

    def _measure(self, job: ActiveJob) -> None:
        seconds = self._seconds_by_phase(job)
        priority = job.priority.name.lower()
        self._queue_wait.labels(priority=priority).observe(seconds.pop(Phase.PHASE_QUEUED))
        outcome = _outcome(job)
        for phase, spent in seconds.items():
            self._phase.labels(phase=_word(Phase, phase, prefix="PHASE_"), outcome=outcome).observe(spent)

    def _seconds_by_phase(self, job: ActiveJob) -> Counter[Phase.ValueType]:
        seconds: Counter[Phase.ValueType] = Counter()
        ends = [stage.since_seconds for stage in job.stages[1:]]
        for stage, end in zip(job.stages, [*ends, self._clock.monotonic()], strict=True):
            seconds[stage.phase] += end - stage.since_seconds  # type: ignore[assignment]  # Counter adds floats as well
        return seconds


def _outcome(job: ActiveJob) -> str:
    """Returns the outcome of a job as a word: "compiled", or why there is no artifact."""
    if job.error is not None:
        return job.error.reason
    if isinstance(job.result, CompileFailure):
        return _word(FailureKind, job.result.kind, prefix="FAILURE_KIND_")
    return "compiled"


def _word(enumeration: Any, number: int, *, prefix: str) -> str:
    # Workers and gateways of a later release may know more of them, and a label has so many values.
    return word_of(enumeration, number, prefix=prefix) if number in enumeration.values() else "other"
