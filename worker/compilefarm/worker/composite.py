"""A pool composed of several, such as one for each release of torch."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from compilefarm.core.pool import Artifact, Assignment, WorkerPool, WorkerView
from compilefarm.v1.job_pb2 import CompileFailure
from compilefarm.worker.supervisor import OnPhase

log = logging.getLogger(__name__)


class CompositePool:
    """Several pools as one. Their workers have different names. Satisfies compilefarm.core.pool.WorkerPool."""

    def __init__(self, pools: Sequence[WorkerPool]) -> None:
        self._pools = pools

    async def start(self) -> None:
        """See WorkerPool.start. A pool that cannot start does not keep the others from it; its workers show why."""
        ends = await asyncio.gather(*(pool.start() for pool in self._pools), return_exceptions=True)
        problems = []
        for end in ends:
            if isinstance(end, RuntimeError):
                problems.append(str(end))
            elif end is not None:
                raise end
        if len(problems) == len(self._pools):
            raise RuntimeError("\n".join(problems))
        for problem in problems:
            log.error("%s", problem)

    async def close(self) -> None:
        """See WorkerPool.close."""
        await asyncio.gather(*(pool.close() for pool in self._pools))

    def workers(self) -> Sequence[WorkerView]:
        """See WorkerPool.workers."""
        return [worker for pool in self._pools for worker in pool.workers()]

    async def run(self, assignment: Assignment, *, worker: str, on_phase: OnPhase) -> Artifact | CompileFailure:
        """See WorkerPool.run."""
        return await self._pool_of(worker).run(assignment, worker=worker, on_phase=on_phase)

    async def verify(self, assignment: Assignment, artifact: Artifact, *, worker: str) -> Artifact | CompileFailure:
        """See WorkerPool.verify."""
        return await self._pool_of(worker).verify(assignment, artifact, worker=worker)

    def _pool_of(self, worker: str) -> WorkerPool:
        return next(pool for pool in self._pools if any(view.name == worker for view in pool.workers()))
