"""The gateway: its server, its ports, its start and its end."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Coroutine, Sequence
from functools import partial
from pathlib import Path

import grpc
import grpc.aio
from grpc_health.v1 import health
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server
from grpc_reflection.v1alpha import reflection
from prometheus_client import CollectorRegistry

from compilefarm.core.pool import DeclaredEnvironment, WorkerPool
from compilefarm.service.admin_service import AdminService
from compilefarm.service.allowances import Allowance
from compilefarm.service.authenticators import AnonymousAuthenticator, Authenticator, DirectoryAuthenticator
from compilefarm.service.blob_service import BlobService
from compilefarm.service.cache_service import CacheCounts, CacheService, NoCacheService
from compilefarm.service.call_limits import CallLimits
from compilefarm.service.clock import Clock, SystemClock
from compilefarm.service.compile_service import CompileService
from compilefarm.service.composition import Composition, Means
from compilefarm.service.config import CannotStart, GatewayConfig, check_exposure, is_local, split_address
from compilefarm.service.connections import Connections, most_connections
from compilefarm.service.directory import read_directory
from compilefarm.service.fair_semaphore import FairSemaphore
from compilefarm.service.health_service import SERVICES, HealthService
from compilefarm.service.incidents import log_failure
from compilefarm.service.interceptor import interceptors
from compilefarm.service.metrics_endpoint import MetricsEndpoint
from compilefarm.service.package_service import NoPackageService, PackageService
from compilefarm.service.quotas import Quotas
from compilefarm.service.reports import Reports
from compilefarm.service.self_checks import SelfChecks
from compilefarm.service.server_options import server_options
from compilefarm.service.servers import make_server
from compilefarm.service.state_metrics import Sources, StateCollector
from compilefarm.service.tls import Tls, find_tls
from compilefarm.service.trust_report import TrustReport
from compilefarm.service.uploads import Staging, Uploads
from compilefarm.service.watched import Watched
from compilefarm.store.artifact_store import ArtifactStore
from compilefarm.store.entries import EntryStore
from compilefarm.store.signing_policy import UNSIGNED, SigningPolicy
from compilefarm.v1.admin_service_pb2_grpc import add_AdminServiceServicer_to_server
from compilefarm.v1.blob_service_pb2_grpc import add_BlobServiceServicer_to_server
from compilefarm.v1.cache_service_pb2_grpc import CacheServiceServicer, add_CacheServiceServicer_to_server
from compilefarm.v1.compile_service_pb2_grpc import add_CompileServiceServicer_to_server
from compilefarm.v1.package_service_pb2_grpc import PackageServiceServicer, add_PackageServiceServicer_to_server

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
        signing: SigningPolicy = UNSIGNED,
        clock: Clock | None = None,
        former_journal: Path | None = None,
        caches: EntryStore | None = None,
        declared: Sequence[DeclaredEnvironment] = (),
    ) -> None:
        """Puts the parts together.

        Args:
            config: what can be set.
            store: where artifacts lie.
            pool: makes them.
            signing: how manifests are signed, and which are served; the store has the same one.
            clock: time.
            former_journal: a folder in which a release before this one may have left prewarms.
            caches: where entries of torch's own caches, and packages, lie; without one there are none.
            declared: environments that need no worker to have jobs wait for them.

        Raises:
            CannotStart: the configuration would let strangers in, or a file that it names cannot be used.
        """
        check_exposure(config)
        clock = clock or SystemClock()
        self._config = config
        self._authenticator = _authenticator(config)
        self._tls = find_tls(config)
        self._trust = TrustReport(asks_callers=bool(config.auth_file), tls=self._tls, public_key=signing.public_key)
        self._store = store
        self._caches = caches
        self._cache_counts = CacheCounts()
        self._quotas = Quotas(limit_bytes=config.max_tenant_upload_bytes, clock=clock)
        self._pool = pool
        self._clock = clock
        self._registry = CollectorRegistry()
        self._parts = Composition(
            Means(
                config=config,
                store=store,
                pool=pool,
                signing=signing,
                clock=clock,
                former_journal=former_journal,
                declared=declared,
            ),
            registry=self._registry,
            has_several_tenants=self._authenticator.has_several_tenants,
        )
        self._reports = Reports()
        self._call_limits = _call_limits(config)
        self._metrics = MetricsEndpoint(config.metrics_listen, registry=self._registry)
        self._tasks: list[asyncio.Task[None]] = []
        self._server: grpc.aio.Server | None = None
        self._address = ""

    @property
    def address(self) -> str:
        """The address of the gateway, as "host:port"; empty before `start`."""
        return self._address

    @property
    def metrics_address(self) -> str:
        """The address for Prometheus, as "host:port"; empty before `start`, and if metrics are off."""
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
        self._begin(self._connections().watch(), name="connections")
        self._begin(self._parts.session.run(), name="session")
        self._begin(self._parts.leases.run(), name="leases that are over")
        self._begin(self._parts.environments.run(self._pool), name="environments")
        try:
            await self._pool.start()
        except BaseException:
            await self.close(grace_seconds=0)
            raise
        self._parts.readiness.has_started = True
        self._parts.queue.open()
        if (resumption := self._parts.resumption()) is not None:
            self._begin(resumption.run(), name="resumed jobs")

    async def close(self, grace_seconds: float) -> None:
        """Drains and stops: says that it is draining, takes nothing new, gives running jobs the grace time and ends
        the others with Draining, then closes the pool and the port. Does nothing when it is not running.
        """
        server, self._server = self._server, None
        if server is None:
            return
        await self._parts.jobs.close(grace_seconds=grace_seconds)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._parts.verifications.close()
        if self._parts.settler is not None:
            await self._parts.settler.close()
        if self._parts.journal is not None:
            await self._parts.journal.close()
        await self._parts.session.end()
        await self._pool.close()
        await server.stop(_FLUSH_SECONDS)
        if self._parts.recorder is not None:
            # No request is noted any more.
            await self._parts.recorder.close()
        self._parts.heavy.close()
        await self._metrics.close()

    def _begin(self, work: Coroutine[None, None, None], *, name: str) -> None:
        """Starts a background task that ends with the gateway. If it fails the log says so."""
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(log_failure)
        self._tasks.append(task)

    def _connections(self) -> Connections:
        return Connections(
            port=int(self._address.rpartition(":")[2]),
            most=self._config.max_connections_of_address,
            call_limits=self._call_limits,
            clock=self._clock,
        )

    def _open_metrics(self) -> None:
        self._registry.register(StateCollector(self._sources(), loop=asyncio.get_running_loop()))
        if self._config.metrics_listen:
            self._metrics.open()

    def _build_server(self) -> grpc.aio.Server:
        passed = interceptors(
            self._authenticator, clock=self._clock, heavy=self._parts.heavy, call_limits=self._call_limits
        )
        server = make_server(interceptors=passed, options=_options(self._config), call_limits=self._call_limits)
        add_CompileServiceServicer_to_server(self._compile_service(), server)
        add_BlobServiceServicer_to_server(self._blob_service(), server)
        add_CacheServiceServicer_to_server(self._cache_service(), server)
        add_PackageServiceServicer_to_server(self._package_service(), server)
        add_AdminServiceServicer_to_server(self._admin_service(), server)
        add_HealthServicer_to_server(HealthService(self._parts.readiness, clock=self._clock), server)
        reflection.enable_server_reflection((*SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
        return server

    def _compile_service(self) -> CompileService:
        parts = self._parts
        return CompileService(
            parts.open_broker(),
            admission=parts.admission,
            prospects=parts.prospects,
            heavy=parts.heavy,
            reports=self._reports,
            self_checks=SelfChecks(withdrawals=parts.withdrawals, reports=self._reports, clock=self._clock),
        )

    def _blob_service(self) -> BlobService:
        return BlobService(
            self._store,
            wanted=self._parts.wanted,
            uploads=self._uploads(self._store, what="sending blobs", max_bytes=self._config.max_blob_bytes),
            reads=_transfers(self._config, what="reading blobs"),
            counters=self._parts.counters,
        )

    def _cache_service(self) -> CacheServiceServicer:
        if self._caches is None:
            return NoCacheService()
        max_bytes = self._config.max_cache_entry_bytes
        return CacheService(
            self._caches,
            uploads=self._uploads(self._caches, what="sending cache entries", max_bytes=max_bytes),
            reads=_transfers(self._config, what="reading cache entries"),
            answers=self._call_limits.answers,
            counters=self._parts.counters,
            counts=self._cache_counts,
            max_entry_bytes=max_bytes,
            read_only=self._config.read_only,
        )

    def _package_service(self) -> PackageServiceServicer:
        if self._caches is None:
            return NoPackageService()
        return PackageService(
            self._caches.packages,
            transfers=_transfers(self._config, what="reading packages"),
            quotas=self._quotas,
            counters=self._parts.counters,
            counts=self._cache_counts,
            read_only=self._config.read_only,
            clock=self._clock,
        )

    def _admin_service(self) -> AdminService:
        parts = self._parts
        return AdminService(
            self._sources(),
            jobs=parts.jobs,
            control=parts.control,
            meter=parts.meter,
            trust=self._trust,
            clock=self._clock,
        )

    def _sources(self) -> Sources:
        parts = self._parts
        return Sources(
            queue=parts.queue,
            store=self._store,
            quarantine=parts.quarantine,
            readiness=parts.readiness,
            counters=parts.counters,
            reports=self._reports,
            farm_version=parts.farm_version,
            caches=self._caches,
            cache_counts=self._cache_counts,
            device_seconds=parts.device_seconds,
        )

    def _uploads(self, store: Staging, *, what: str, max_bytes: int) -> Uploads:
        config = self._config
        return Uploads(
            store,
            semaphore=_transfers(config, what=what),
            allowance=Allowance(account_bytes=config.max_upload_bytes_of_caller, all_bytes=config.max_upload_bytes),
            quotas=self._quotas,
            counters=self._parts.counters,
            max_blob_bytes=max_bytes,
        )


def _call_limits(config: GatewayConfig) -> CallLimits:
    return CallLimits(connections=config.max_connections_of_address, health_calls=config.max_health_calls_of_address)


def _transfers(config: GatewayConfig, *, what: str) -> FairSemaphore:
    return FairSemaphore(what, places=config.max_transfers, account_places=config.max_transfers_of_caller)


def _options(config: GatewayConfig) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", config.max_message_bytes),
        *server_options(most_connections=most_connections()),
    ]


def _authenticator(config: GatewayConfig) -> Authenticator:
    if not config.auth_file:
        return AnonymousAuthenticator()
    if not is_local(config) and not config.tls_certificate:
        log.warning(
            "tokens travel in clear between callers and %s, and whoever listens can use them: use --tls-certificate",
            config.listen,
        )
    return DirectoryAuthenticator(Watched([config.auth_file], read=partial(read_directory, config.auth_file)))


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
