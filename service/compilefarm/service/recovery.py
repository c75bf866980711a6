"""Waits for failed workers, whose pools restart their processes after a while."""

from __future__ import annotations

from collections.abc import Iterable

from compilefarm.core.pool import WorkerView
from compilefarm.service.clock import Clock
from compilefarm.v1.admin_service_pb2 import WORKER_STATE_FAILED


class Recovery:
    """Gives workers that fail some time to come back, each once until it has. So jobs wait when all workers fail at
    once, and a farm whose workers stay broken says so at once to whoever comes later.

    Args:
        clock: time.
        seconds: how much time.
    """

    def __init__(self, *, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        # When each was first seen to have failed.
        self._failed: dict[str, float] = {}

    def expected(self, workers: Iterable[WorkerView]) -> frozenset[str]:
        """Names of the workers that have failed and may come back yet. One that has never started is none of them.

        Args:
            workers: all, as they stand at this moment.
        """
        now_seconds = self._clock.monotonic()
        self._failed = {
            worker.name: self._failed.get(worker.name, now_seconds)
            for worker in workers
            if worker.state == WORKER_STATE_FAILED and worker.environment is not None
        }
        return frozenset(name for name, since in self._failed.items() if now_seconds - since < self._seconds)
