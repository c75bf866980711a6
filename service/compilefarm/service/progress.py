"""The progress of jobs, for callers that wait and for operators."""

from __future__ import annotations

from compilefarm.service.active_job import ActiveJob, Stage
from compilefarm.service.durations import Durations
from compilefarm.service.queue import Queue
from compilefarm.v1.compile_service_pb2 import Progress


class ProgressMeter:
    """Reports the progress of jobs.

    Args:
        queue: knows how long jobs will wait.
        durations: know how long they take.
    """

    def __init__(self, *, queue: Queue, durations: Durations) -> None:
        self._queue = queue
        self._durations = durations

    def read(self, job: ActiveJob, *, stage: Stage | None = None) -> Progress:
        """Returns the progress of a job.

        Args:
            job: the job.
            stage: that is told of it; None: the one that it is in.
        """
        told, outlook = stage or job.stage, self._queue.outlook(job)
        return Progress(
            phase=told.phase,
            elapsed_seconds=job.elapsed_seconds,
            jobs_ahead=outlook.jobs_ahead,
            worker=told.worker,
            estimated_wait_seconds=outlook.wait_seconds,
            estimated_compile_seconds=self._durations.estimate(job.kind),
            waits_for=told.waits_for or self._queue.awaited(job),
        )
