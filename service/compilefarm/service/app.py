"""The gateway, put together."""

from __future__ import annotations

import asyncio
import logging
import socket
from functools import partial
from importlib.metadata import version
from pathlib import Path

import grpc
import grpc.aio
from grpc_health.v1 import health
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server
from grpc_reflection.v1alpha import reflection
from prometheus_client import CollectorRegistry

from compilefarm.core.pool import WorkerPool
from compilefarm.service.admin_service import AdminService
from compilefarm.service.allowances import Allowance
from compilefarm.service.attempts import Attempts
from compilefarm.service.blob_service import BlobService
from compilefarm.service.broker import Answering, Broker
from compilefarm.service.checks import Checks
from compilefarm.service.clock import Clock, SystemClock
from compilefarm.service.compile_service import CompileService
from compilefarm.service.config import CannotStart, GatewayConfig, check_exposure, is_local, split_address
from compilefarm.service.connections import Connections
from compilefarm.service.counters import Counters
from compilefarm.service.directory import read_directory
from compilefarm.service.door import Door, GuardedDoor, OpenDoor
from compilefarm.service.durations import Durations
from compilefarm.service.flight_metrics import FlightMetrics
from compilefarm.service.flights import Flight, Flights
from compilefarm.service.health_service import SERVICES, HealthService
from compilefarm.service.heavy_work import HeavyWork
from compilefarm.service.interceptor import GuardInterceptor, RequestIdInterceptor
from compilefarm.service.jobs import Jobs
from compilefarm.service.journal import Journal
from compilefarm.service.limits import Limits
from compilefarm.service.metrics_endpoint import MetricsEndpoint
from compilefarm.service.quarantine import Quarantine
from compilefarm.service.queue import Queue
from compilefarm.service.quotas import Quotas
from compilefarm.service.readiness import Readiness
from compilefarm.service.recording_broker import RecordingBroker
from compilefarm.service.recovery import Recovery
from compilefarm.service.reports import Reports
from compilefarm.service.self_checks import SelfChecks
from compilefarm.service.slots import Slots
from compilefarm.service.standing import Standing
from compilefarm.service.state_metrics import Sources, StateCollector
from compilefarm.service.tls import Tls, find_tls
from compilefarm.service.turns import Turns
from compilefarm.service.uploads import Uploads
from compilefarm.service.visitors import Visitors
from compilefarm.service.wanted import WantedBlobs
from compilefarm.service.watched import Watched
from compilefarm.store.artifact_store import ArtifactStore
from compilefarm.store.seals import NO_SEAL, Seal
from compilefarm.v1.admin_service_pb2_grpc import add_AdminServiceServicer_to_server
from compilefarm.v1.blob_service_pb2_grpc import add_BlobServiceServicer_to_server
from compilefarm.v1.compile_service_pb2_grpc import add_CompileServiceServicer_to_server

log = logging.getLogger(__name__)

# Calls that have been answered get this long to send their last bytes.
_FLUSH_SECONDS = 2.0


class Gateway:
    """The service that clients talk to. It owns the pool from `start` on, and closes it."""

    def __init__(
        self,
        config: GatewayConfig,
        *,
        store: ArtifactStore,
        pool: WorkerPool,
        seal: Seal = NO_SEAL,
        clock: Clock | None = None,
        journal: Journal | None = None,
    ) -> None:
        """Puts the parts together.

        Args:
            config: what can be set.
            store: where artifacts lie.
            pool: makes them.
            seal: vouches for what the store gives; the store has the same one.
            clock: time.
            journal: where prewarm jobs are kept until they are done; without one they end with the process.

        Raises:
            CannotStart: the configuration would let strangers in, or a file that it names cannot be used.
        """
        check_exposure(config)
        self._config = config
        self._door = _door(config)
        self._tls = find_tls(config)
        self._standing = Standing(asks_callers=bool(config.auth_file), tls=self._tls, public_key=seal.public_key)
        self._store = store
        self._seal = seal
        self._pool = pool
        self._clock = clock or SystemClock()
        self._farm_version = version("compilefarm")
        self._counters = Counters()
        self._reports = Reports()
        self._registry = CollectorRegistry()
        self._journal = journal
        self._wanted = WantedBlobs()
        self._heavy = HeavyWork()
        self._visitors = _visitors(config)
        self._watching: asyncio.Task[None] | None = None
        self._resuming: asyncio.Task[None] | None = None
        self._durations = Durations()
        limits = Limits(queued_jobs=config.max_queued_jobs, tenant_jobs=config.max_queued_jobs_of_tenant)
        self._queue = Queue(
            pool,
            clock=self._clock,
            limits=limits,
            durations=self._durations,
            recovery=Recovery(clock=self._clock, seconds=config.recovery_seconds),
            slots=Slots(
                tenant_jobs=config.max_running_jobs_of_tenant, has_several_tenants=self._door.has_several_tenants
            ),
        )
        self._flight_metrics = FlightMetrics(self._registry, clock=self._clock)
        self._flights = Flights(
            clock=self._clock,
            progress_seconds=config.progress_seconds,
            orphan_seconds=config.orphan_seconds,
            on_change=self._queue.reconsider,
            on_landed=self._note_landing,
        )
        self._quarantine = Quarantine(clock=self._clock, seconds=config.quarantine_seconds)
        self._readiness = Readiness(pool=pool, flights=self._flights)
        self._metrics = MetricsEndpoint(config.metrics_listen, registry=self._registry)
        self._server: grpc.aio.Server | None = None
        self._address = ""

    @property
    def address(self) -> str:
        """Where it listens, as "host:port"; empty before `start`."""
        return self._address

    @property
    def metrics_address(self) -> str:
        """Where Prometheus fetches figures, as "host:port"; empty before `start`, and if it is not to."""
        return self._metrics.address

    async def start(self) -> None:
        """Takes the ports, starts the workers, and serves. While the workers start, what is stored is served, and jobs
        wait.

        Raises:
            CannotStart: a port cannot be taken.
            UnusableRecording: nothing can be recorded where the configuration says.
            RuntimeError: no worker could be started.
        """
        server = self._build_server()
        self._open_metrics()
        try:
            self._address = _bind(server, self._config.listen, tls=self._tls)
        except CannotStart:
            await self._metrics.close()
            raise
        await server.start()
        self._server = server
        connections = Connections(
            port=int(self._address.rpartition(":")[2]),
            most=self._config.max_connections_of_address,
            visitors=self._visitors,
            clock=self._clock,
        )
        self._watching = asyncio.create_task(connections.watch(), name="connections")
        try:
            await self._pool.start()
        except BaseException:
            await self.close(grace_seconds=0)
            raise
        self._readiness.has_started = True
        self._queue.open()
        if self._journal is not None:
            self._resuming = asyncio.create_task(self._broker.resume(self._journal), name="resumed jobs")

    async def close(self, grace_seconds: float) -> None:
        """Drains and stops: says that it is draining, takes nothing new, gives running jobs the grace time and ends
        the others with Draining, then closes the pool and the port. Does nothing when it is not running.
        """
        server, self._server = self._server, None
        if server is None:
            return
        await self._flights.close(grace_seconds=grace_seconds)
        if self._resuming is not None:
            self._resuming.cancel()
            await asyncio.gather(self._resuming, return_exceptions=True)
        await self._checks.close()
        await self._pool.close()
        await server.stop(_FLUSH_SECONDS)
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        self._heavy.close()
        await self._metrics.close()

    def _note_landing(self, flight: Flight) -> None:
        self._flight_metrics.note(flight)
        if self._journal is not None:
            self._journal.settle(flight)

    def _open_metrics(self) -> None:
        sources = Sources(
            pool=self._pool,
            queue=self._queue,
            store=self._store,
            quarantine=self._quarantine,
            readiness=self._readiness,
            counters=self._counters,
            reports=self._reports,
            farm_version=self._farm_version,
        )
        self._registry.register(StateCollector(sources, loop=asyncio.get_running_loop()))
        if self._config.metrics_listen:
            self._metrics.open()

    def _build_server(self) -> grpc.aio.Server:
        attempts = Attempts(
            pool=self._pool,
            queue=self._queue,
            store=self._store,
            durations=self._durations,
            quarantine=self._quarantine,
            clock=self._clock,
            max_attempts=self._config.max_attempts,
        )
        self._checks = Checks(
            verify="off" if self._config.read_only else self._config.verify,
            store=self._store,
            queue=self._queue,
            attempts=attempts,
            counters=self._counters,
            clock=self._clock,
        )
        self._self_checks = SelfChecks(checks=self._checks, reports=self._reports, clock=self._clock)
        self._broker = Broker(
            store=self._store,
            seal=self._seal,
            queue=self._queue,
            attempts=attempts,
            checks=self._checks,
            journal=self._journal,
            wanted=self._wanted,
            heavy=self._heavy,
            waiting=Allowance(
                account_bytes=self._config.max_waiting_bytes_of_caller, all_bytes=self._config.max_waiting_bytes
            ),
            flights=self._flights,
            durations=self._durations,
            quarantine=self._quarantine,
            counters=self._counters,
            clock=self._clock,
            read_only=self._config.read_only,
            max_nodes=self._config.max_nodes,
            max_values=self._config.max_values,
            farm_version=self._farm_version,
        )
        admin = AdminService(
            store=self._store,
            pool=self._pool,
            queue=self._queue,
            flights=self._flights,
            jobs=Jobs(
                flights=self._flights,
                checks=self._checks,
                queue=self._queue,
                quarantine=self._quarantine,
                clock=self._clock,
            ),
            readiness=self._readiness,
            counters=self._counters,
            reports=self._reports,
            standing=self._standing,
            clock=self._clock,
            farm_version=self._farm_version,
        )
        blobs = BlobService(
            self._store,
            uploads=self._uploads(),
            reads=_transfers(self._config, what="reading blobs"),
            counters=self._counters,
        )
        interceptors = [
            RequestIdInterceptor(),
            GuardInterceptor(self._door, clock=self._clock, heavy=self._heavy, visitors=self._visitors),
        ]
        server = grpc.aio.server(interceptors=interceptors, options=_options(self._config))
        answering = self._recording(self._broker)
        compiles = CompileService(answering, reports=self._reports, self_checks=self._self_checks)
        add_CompileServiceServicer_to_server(compiles, server)
        add_BlobServiceServicer_to_server(blobs, server)
        add_AdminServiceServicer_to_server(admin, server)
        add_HealthServicer_to_server(HealthService(self._readiness, clock=self._clock), server)
        reflection.enable_server_reflection((*SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
        return server

    def _uploads(self) -> Uploads:
        config = self._config
        return Uploads(
            self._store,
            wanted=self._wanted,
            turns=_transfers(config, what="sending blobs"),
            allowance=Allowance(account_bytes=config.max_upload_bytes_of_caller, all_bytes=config.max_upload_bytes),
            quotas=Quotas(limit_bytes=config.max_tenant_upload_bytes, clock=self._clock),
            counters=self._counters,
            max_blob_bytes=config.max_blob_bytes,
        )

    def _recording(self, broker: Answering) -> Answering:
        if not self._config.record:
            return broker
        return RecordingBroker(broker, folder=Path(self._config.record), store=self._store)


def _visitors(config: GatewayConfig) -> Visitors:
    return Visitors(connections=config.max_connections_of_address, health_calls=config.max_health_calls_of_address)


def _transfers(config: GatewayConfig, *, what: str) -> Turns:
    return Turns(what, places=config.max_transfers, account_places=config.max_transfers_of_caller)


def _options(config: GatewayConfig) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", config.max_message_bytes),
        # What comes before it is asked for stays below 64 KiB for each call. gRPC would measure the line and let come
        # as much as that carries, for calls that wait for a place, too.
        ("grpc.http2.bdp_probe", 0),
        # Linux would let a second service share the port, and each would get some of the calls.
        ("grpc.so_reuseport", 0),
        # Clients ping every 10 s while they wait; gRPC would end the connection of one that pings more often than this.
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
        ("grpc.keepalive_permit_without_calls", 1),
        # A client that vanished without a word is noticed, so that its stream does not stay for ever.
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.max_concurrent_streams", 1024),
        # Whoever connects and says nothing goes: at once while it does not speak the protocol, later while it does.
        ("grpc.server_handshake_timeout_ms", 20_000),
        ("grpc.max_connection_idle_ms", 3_600_000),
    ]


def _door(config: GatewayConfig) -> Door:
    if not config.auth_file:
        return OpenDoor()
    if not is_local(config) and not config.tls_certificate:
        log.warning(
            "tokens travel in clear between callers and %s, and whoever listens can use them: use --tls-certificate",
            config.listen,
        )
    return GuardedDoor(Watched([config.auth_file], read=partial(read_directory, config.auth_file)))


def _bind(server: grpc.aio.Server, listen: str, *, tls: Tls | None) -> str:
    host, port = split_address(listen)
    try:
        bound = server.add_secure_port(listen, tls.credentials()) if tls else server.add_insecure_port(listen)
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
