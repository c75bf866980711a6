"""The gateway, put together."""

from __future__ import annotations

import socket
from importlib.metadata import version

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from compilefarm.core.pool import WorkerPool
from compilefarm.service.admin_service import AdminService
from compilefarm.service.attempts import Attempts
from compilefarm.service.blob_service import BlobService
from compilefarm.service.broker import Broker
from compilefarm.service.clock import Clock, SystemClock
from compilefarm.service.compile_service import CompileService
from compilefarm.service.config import CannotStart, GatewayConfig, check_exposure, split_address
from compilefarm.service.counters import Counters
from compilefarm.service.durations import Durations
from compilefarm.service.flights import Flights
from compilefarm.service.interceptor import ErrorInterceptor
from compilefarm.service.limits import Limits
from compilefarm.service.queue import Queue
from compilefarm.store.artifact_store import ArtifactStore
from compilefarm.v1 import admin_service_pb2, blob_service_pb2, compile_service_pb2
from compilefarm.v1.admin_service_pb2_grpc import add_AdminServiceServicer_to_server
from compilefarm.v1.blob_service_pb2_grpc import add_BlobServiceServicer_to_server
from compilefarm.v1.compile_service_pb2_grpc import add_CompileServiceServicer_to_server

SERVICES = (
    compile_service_pb2.DESCRIPTOR.services_by_name["CompileService"].full_name,
    blob_service_pb2.DESCRIPTOR.services_by_name["BlobService"].full_name,
    admin_service_pb2.DESCRIPTOR.services_by_name["AdminService"].full_name,
)
# Calls that have been answered get this long to send their last bytes.
_FLUSH_SECONDS = 2.0


class Gateway:
    """The service that clients talk to. It owns the pool from `start` on, and closes it."""

    def __init__(
        self, config: GatewayConfig, *, store: ArtifactStore, pool: WorkerPool, clock: Clock | None = None
    ) -> None:
        """Puts the parts together.

        Raises:
            CannotStart: the configuration would let strangers in.
        """
        check_exposure(config)
        self._config = config
        self._store = store
        self._pool = pool
        self._clock = clock or SystemClock()
        self._counters = Counters()
        self._durations = Durations()
        limits = Limits(queued_jobs=config.max_queued_jobs, tenant_jobs=config.max_queued_jobs_of_tenant)
        self._queue = Queue(pool, clock=self._clock, limits=limits, durations=self._durations)
        self._flights = Flights(
            clock=self._clock,
            progress_seconds=config.progress_seconds,
            orphan_seconds=config.orphan_seconds,
            on_change=self._queue.reconsider,
        )
        self._health = health.aio.HealthServicer()
        self._server: grpc.aio.Server | None = None
        self._address = ""

    @property
    def address(self) -> str:
        """Where it listens, as "host:port"; empty before `start`."""
        return self._address

    async def start(self) -> None:
        """Takes the port, starts the workers, and serves.

        Raises:
            CannotStart: the port cannot be taken.
            RuntimeError: no worker could be started.
        """
        server = self._build_server()
        # The port comes first: starting workers takes half a minute, and a taken port should not.
        self._address = _bind(server, self._config.listen)
        try:
            await self._pool.start()
        except BaseException:
            await self._pool.close()
            # A server that never ran would not let go of its port.
            await server.start()
            await server.stop(None)
            raise
        await server.start()
        self._server = server
        await self._set_health(health_pb2.HealthCheckResponse.SERVING)

    async def close(self, grace_seconds: float) -> None:
        """Drains and stops: says that it is not serving, takes nothing new, gives running jobs the grace time and ends
        the others with Draining, then closes the pool and the port. Does nothing when it is not running.
        """
        server, self._server = self._server, None
        if server is None:
            return
        await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        await self._flights.close(grace_seconds=grace_seconds)
        await self._pool.close()
        await server.stop(_FLUSH_SECONDS)

    def _build_server(self) -> grpc.aio.Server:
        farm_version = version("compilefarm")
        broker = Broker(
            store=self._store,
            queue=self._queue,
            attempts=Attempts(
                pool=self._pool,
                queue=self._queue,
                store=self._store,
                durations=self._durations,
                clock=self._clock,
                max_attempts=self._config.max_attempts,
            ),
            flights=self._flights,
            durations=self._durations,
            counters=self._counters,
            clock=self._clock,
            max_nodes=self._config.max_nodes,
            farm_version=farm_version,
        )
        admin = AdminService(
            store=self._store,
            pool=self._pool,
            queue=self._queue,
            counters=self._counters,
            started=self._clock.now(),
            farm_version=farm_version,
        )
        server = grpc.aio.server(interceptors=[ErrorInterceptor()], options=_options(self._config))
        add_CompileServiceServicer_to_server(CompileService(broker), server)
        add_BlobServiceServicer_to_server(BlobService(self._store, max_blob_bytes=self._config.max_blob_bytes), server)
        add_AdminServiceServicer_to_server(admin, server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection((*SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
        return server

    async def _set_health(self, status: int) -> None:
        for service in ("", *SERVICES):
            await self._health.set(service, status)


def _options(config: GatewayConfig) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", config.max_message_bytes),
        # Linux would let a second service share the port, and each would get some of the calls.
        ("grpc.so_reuseport", 0),
        # Clients ping every 10 s while they wait; gRPC would end the connection of one that pings more often than this.
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
        ("grpc.keepalive_permit_without_calls", 1),
        # A client that vanished without a word is noticed, so that its stream does not stay for ever.
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
    ]


def _bind(server: grpc.aio.Server, listen: str) -> str:
    host, port = split_address(listen)
    try:
        bound = server.add_insecure_port(listen)
    except RuntimeError as error:
        raise _cannot_listen(host, port) from error
    if bound == 0:
        raise _cannot_listen(host, port)
    return f"[{host}]:{bound}" if ":" in host else f"{host}:{bound}"


def _cannot_listen(host: str, port: int) -> CannotStart:
    return CannotStart(
        f"cannot listen on {host}:{port} ({_reason(host, port)}): end the program that has the port, or choose another "
        "with --listen HOST:PORT (port 0 takes a free one)"
    )


def _reason(host: str, port: int) -> str:
    """What gRPC does not tell: asks the system the same thing once more."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(where)
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return "it was refused"
