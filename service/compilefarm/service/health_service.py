"""grpc.health.v1.Health on the wire, for load balancers and orchestrators.

| the farm is | whole ("") | CompileService | BlobService, CacheService, PackageService, AdminService |
|---|---|---|---|
| starting | not serving | not serving | serving |
| serving | serving | serving | serving |
| without workers | serving | not serving | serving |
| draining | not serving | not serving | not serving |
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthServicer

from compilefarm.service.clock import Clock, pause
from compilefarm.service.grpc_types import Context
from compilefarm.service.readiness import Readiness
from compilefarm.v1 import (
    admin_service_pb2,
    blob_service_pb2,
    cache_service_pb2,
    compile_service_pb2,
    package_service_pb2,
)
from compilefarm.v1.admin_service_pb2 import FarmState

WHOLE = ""
COMPILES = compile_service_pb2.DESCRIPTOR.services_by_name["CompileService"].full_name
BLOBS = blob_service_pb2.DESCRIPTOR.services_by_name["BlobService"].full_name
ADMIN = admin_service_pb2.DESCRIPTOR.services_by_name["AdminService"].full_name
CACHES = cache_service_pb2.DESCRIPTOR.services_by_name["CacheService"].full_name
PACKAGES = package_service_pb2.DESCRIPTOR.services_by_name["PackageService"].full_name
SERVICES = (COMPILES, BLOBS, CACHES, PACKAGES, ADMIN)

_SERVING: Mapping[FarmState.ValueType, frozenset[str]] = {
    FarmState.FARM_STATE_STARTING: frozenset({BLOBS, CACHES, PACKAGES, ADMIN}),
    FarmState.FARM_STATE_SERVING: frozenset({WHOLE, COMPILES, BLOBS, CACHES, PACKAGES, ADMIN}),
    FarmState.FARM_STATE_NO_WORKERS: frozenset({WHOLE, BLOBS, CACHES, PACKAGES, ADMIN}),
    FarmState.FARM_STATE_DRAINING: frozenset(),
}
_LOOK_SECONDS = 1.0


class HealthService(HealthServicer):
    """Adapts the readiness of the farm to the wire."""

    def __init__(self, readiness: Readiness, *, clock: Clock) -> None:
        self._readiness = readiness
        self._clock = clock

    async def Check(self, request: HealthCheckRequest, context: Context) -> HealthCheckResponse:
        status = self._status(request.service)
        if status == HealthCheckResponse.SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no such service: {request.service[:100]}")
        return HealthCheckResponse(status=status)

    async def Watch(self, request: HealthCheckRequest, _context: Context) -> AsyncIterator[HealthCheckResponse]:
        told = None
        while True:
            status = self._status(request.service)
            if status != told:
                told = status
                yield HealthCheckResponse(status=status)
            await pause(_LOOK_SECONDS, clock=self._clock)

    def _status(self, service: str) -> int:
        if service not in (WHOLE, *SERVICES):
            return HealthCheckResponse.SERVICE_UNKNOWN
        is_serving = service in _SERVING[self._readiness.state()]
        return HealthCheckResponse.SERVING if is_serving else HealthCheckResponse.NOT_SERVING
