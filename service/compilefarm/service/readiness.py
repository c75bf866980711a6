"""The state of the farm: starting, serving, draining, or without workers."""

from __future__ import annotations

from compilefarm.service.active_jobs import ActiveJobs
from compilefarm.service.queue import Queue
from compilefarm.v1.admin_service_pb2 import FarmState, WorkerState


class Readiness:
    """Determines whether the farm is starting, serving, draining, or without workers.

    Attributes:
        has_started: whether every worker has become ready or has failed.
    """

    def __init__(self, *, queue: Queue, jobs: ActiveJobs) -> None:
        self.has_started = False
        self._queue = queue
        self._jobs = jobs

    def state(self) -> FarmState.ValueType:
        """The state, as a word."""
        if self._jobs.closed:
            return FarmState.FARM_STATE_DRAINING
        if not self.has_started:
            return FarmState.FARM_STATE_STARTING
        if all(worker.state == WorkerState.WORKER_STATE_FAILED for worker in self._queue.candidates()):
            return FarmState.FARM_STATE_NO_WORKERS
        return FarmState.FARM_STATE_SERVING
