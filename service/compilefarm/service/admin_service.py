"""compilefarm.v1.AdminService on the wire."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime

from compilefarm.core.pool import WorkerPool, WorkerView
from compilefarm.service.counters import Counters
from compilefarm.service.grpc_types import Context
from compilefarm.service.inspection import inspect
from compilefarm.service.queue import Queue
from compilefarm.store.artifact_store import ArtifactStore
from compilefarm.v1 import admin_service_pb2 as wire
from compilefarm.v1.admin_service_pb2_grpc import AdminServiceServicer


class AdminService(AdminServiceServicer):
    """Adapts what the parts of the gateway tell about themselves to the wire."""

    def __init__(
        self,
        *,
        store: ArtifactStore,
        pool: WorkerPool,
        queue: Queue,
        counters: Counters,
        started: datetime,
        farm_version: str,
    ) -> None:
        self._store = store
        self._pool = pool
        self._queue = queue
        self._counters = counters
        self._started = started
        self._farm_version = farm_version

    async def Status(self, _request: wire.StatusRequest, _context: Context) -> wire.StatusResponse:
        response = wire.StatusResponse(
            farm_version=self._farm_version,
            workers=[_worker(view) for view in self._pool.workers()],
            queued_jobs=self._queue.waiting,
            running_jobs=self._queue.running,
            counters=wire.Counters(**asdict(self._counters)),
            store=await self._store.usage(),
        )
        response.started.FromDatetime(self._started)
        return response

    async def Inspect(self, request: wire.InspectRequest, _context: Context) -> wire.InspectResponse:
        return wire.InspectResponse(manifest=await inspect(request.key, store=self._store))


def _worker(view: WorkerView) -> wire.Worker:
    return wire.Worker(
        name=view.name,
        state=view.state,
        environment=view.environment,
        job_key=view.job_key or "",
        is_warm=view.is_warm,
    )
