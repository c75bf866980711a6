"""Composes what runs jobs and answers requests; `app` serves it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from prometheus_client import CollectorRegistry

from compilefarm.core.pool import DeclaredEnvironment, WorkerPool
from compilefarm.service.active_job import JobObserver
from compilefarm.service.active_jobs import ActiveJobs
from compilefarm.service.admission import Admission
from compilefarm.service.allowances import Allowance
from compilefarm.service.attempts import Attempts
from compilefarm.service.background_recorder import BackgroundRecorder
from compilefarm.service.broker import Broker
from compilefarm.service.clock import Clock
from compilefarm.service.compilation import Compilation
from compilefarm.service.config import GatewayConfig
from compilefarm.service.counters import Counters, JobCounts, RequestCounts
from compilefarm.service.declared_environments import DeclaredEnvironments
from compilefarm.service.device_seconds import DeviceSeconds
from compilefarm.service.durations import Durations
from compilefarm.service.heavy_work import HeavyWork
from compilefarm.service.job_control import JobControl
from compilefarm.service.job_log import JobLog, RequestLog
from compilefarm.service.job_metrics import JobMetrics
from compilefarm.service.journal import Journal
from compilefarm.service.journaling import JournalingBroker, JournalSettler, Resumption
from compilefarm.service.key_leases import KeyLeases
from compilefarm.service.limits import Limits
from compilefarm.service.preconditions import Preconditions
from compilefarm.service.progress import ProgressMeter
from compilefarm.service.prospects import Prospects
from compilefarm.service.publishing import Publisher
from compilefarm.service.quarantine import Quarantine
from compilefarm.service.queue import Queue
from compilefarm.service.readiness import Readiness
from compilefarm.service.recording_broker import RecordingBroker
from compilefarm.service.recovery import Recovery
from compilefarm.service.requests import Answering
from compilefarm.service.sessions import Peers, Session
from compilefarm.service.slots import Slots
from compilefarm.service.variants import VariantLimits
from compilefarm.service.verifications import Verifications
from compilefarm.service.wanted import WantedBlobs
from compilefarm.service.withdrawals import Withdrawals
from compilefarm.store.artifact_store import ArtifactStore
from compilefarm.store.signing_policy import SigningPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """The dependencies of a gateway.

    Attributes:
        config: what can be set.
        store: where artifacts lie.
        pool: makes them.
        signing: how manifests are signed, and which are served; the store has the same one.
        clock: time.
        former_journal: a folder in which a release before this one may have left prewarms; None: there is none.
        declared: environments that need no worker to have jobs wait for them.
    """

    config: GatewayConfig
    store: ArtifactStore
    pool: WorkerPool
    signing: SigningPolicy
    clock: Clock
    former_journal: Path | None = None
    declared: Sequence[DeclaredEnvironment] = ()


class Composition:
    """The objects that run jobs and answer requests, one of each class.

    Args:
        means: what it is made of.
        registry: where figures of jobs are kept.
        has_several_tenants: whether callers are told apart by tenant, and there is more than one.
    """

    def __init__(self, means: Means, *, registry: CollectorRegistry, has_several_tenants: Callable[[], bool]) -> None:
        self._means = means
        self.farm_version = version("compilefarm")
        self.counters = Counters()
        self.durations = Durations()
        self.device_seconds = DeviceSeconds(means.clock)
        self.heavy = HeavyWork()
        self.wanted = WantedBlobs()
        self.quarantine = Quarantine(
            means.store.shared,
            clock=means.clock,
            seconds=means.config.quarantine_seconds,
            farm_version=self.farm_version,
        )
        self.session = Session(means.store.shared, clock=means.clock)
        peers = Peers(means.store.shared, clock=means.clock)
        self.leases = KeyLeases(means.store, session=self.session, peers=peers, clock=means.clock)
        self.journal = (
            None
            if means.config.read_only
            else Journal(means.store.shared, session=self.session, peers=peers, clock=means.clock)
        )
        self.settler = None if self.journal is None else JournalSettler(self.journal)
        self.environments = DeclaredEnvironments(means.declared, backend=means.store.shared, clock=means.clock)
        self.queue = self._make_queue(has_several_tenants)
        self._observers = self._job_observers(registry)
        self._attempts = self._make_attempts()
        self.withdrawals = Withdrawals(store=means.store, counters=self.counters, clock=means.clock)
        self.verifications = self._make_verifications()
        self.jobs = self._make_jobs()
        self.control = JobControl(jobs=self.jobs, verifications=self.verifications, quarantine=self.quarantine)
        self.meter = ProgressMeter(queue=self.queue, durations=self.durations)
        self.readiness = Readiness(queue=self.queue, jobs=self.jobs)
        self._request_counts = RequestCounts(self.counters)
        self.admission = self._make_admission()
        self._broker = self._make_broker()
        self.prospects = self._make_prospects()
        # There is one as soon as the broker is open, where requests are recorded.
        self.recorder: BackgroundRecorder | None = None

    def open_broker(self) -> Answering:
        """Opens the broker with the decorators that the configuration asks for.

        Raises:
            UnusableRecording: nothing can be recorded where the configuration says.
        """
        means, broker = self._means, self._broker
        answering: Answering = broker
        if self.journal is not None:
            answering = JournalingBroker(answering, journal=self.journal)
        if means.config.record:
            folder = Path(means.config.record)
            self.recorder = BackgroundRecorder(folder, store=means.store, clock=means.clock)
            answering = RecordingBroker(answering, recorder=self.recorder)
        return answering

    def resumption(self) -> Resumption | None:
        """Does what gateways had accepted that are gone; None without a journal."""
        means = self._means
        if self.journal is None:
            return None
        return Resumption(
            self.journal,
            former=means.former_journal,
            admission=self.admission,
            broker=self._broker,
            clock=means.clock,
        )

    def _make_queue(self, has_several_tenants: Callable[[], bool]) -> Queue:
        config, clock = self._means.config, self._means.clock
        return Queue(
            self._means.pool,
            clock=clock,
            limits=Limits(queued_jobs=config.max_queued_jobs, tenant_jobs=config.max_queued_jobs_of_tenant),
            durations=self.durations,
            recovery=Recovery(clock=clock, seconds=config.recovery_seconds),
            slots=Slots(tenant_jobs=config.max_running_jobs_of_tenant, has_several_tenants=has_several_tenants),
            declared=self.environments,
        )

    def _job_observers(self, registry: CollectorRegistry) -> list[JobObserver]:
        observers: list[JobObserver] = [
            JobCounts(self.counters),
            self.device_seconds,
            JobLog(self.queue.describe_worker),
            JobMetrics(registry, clock=self._means.clock),
        ]
        if self.settler is not None:
            observers.append(self.settler)
        return observers

    def _make_attempts(self) -> Attempts:
        return Attempts(
            pool=self._means.pool,
            queue=self.queue,
            store=self._means.store,
            durations=self.durations,
            quarantine=self.quarantine,
            clock=self._means.clock,
            max_attempts=self._means.config.max_attempts,
        )

    def _make_verifications(self) -> Verifications:
        config = self._means.config
        return Verifications(
            verify="off" if config.read_only else config.verify,
            store=self._means.store,
            queue=self.queue,
            attempts=self._attempts,
            withdrawals=self.withdrawals,
            memory=self._memory_of_jobs(),
            clock=self._means.clock,
            observers=self._observers,
        )

    def _make_compilation(self) -> Compilation:
        means = self._means
        publisher = Publisher(store=means.store, clock=means.clock, farm_version=self.farm_version)
        preconditions = Preconditions(
            store=means.store,
            publisher=publisher,
            signing=means.signing,
            variants=VariantLimits(means.store, clock=means.clock),
            read_only=means.config.read_only,
        )
        return Compilation(
            store=means.store,
            quarantine=self.quarantine,
            preconditions=preconditions,
            queue=self.queue,
            attempts=self._attempts,
            publisher=publisher,
            verifications=self.verifications,
            durations=self.durations,
            leases=self.leases,
        )

    def _make_admission(self) -> Admission:
        config = self._means.config
        return Admission(
            heavy=self.heavy,
            jobs=self.jobs,
            waiting=self._memory_of_jobs(),
            max_nodes=config.max_nodes,
            max_values=config.max_values,
            observers=[self._request_counts, self.wanted],
        )

    def _memory_of_jobs(self) -> Allowance:
        config = self._means.config
        return Allowance(account_bytes=config.max_waiting_bytes_of_caller, all_bytes=config.max_waiting_bytes)

    def _make_jobs(self) -> ActiveJobs:
        config = self._means.config
        return ActiveJobs(
            self._make_compilation().run,
            clock=self._means.clock,
            progress_seconds=config.progress_seconds,
            orphan_seconds=config.orphan_seconds,
            on_priority=self.queue.reconsider,
            memory=self._memory_of_jobs(),
            observers=self._observers,
        )

    def _make_broker(self) -> Broker:
        return Broker(
            store=self._means.store,
            jobs=self.jobs,
            verifications=self.verifications,
            meter=self.meter,
            observers=[self._request_counts, self.device_seconds, RequestLog()],
        )

    def _make_prospects(self) -> Prospects:
        return Prospects(
            store=self._means.store,
            quarantine=self.quarantine,
            jobs=self.jobs,
            queue=self.queue,
            durations=self.durations,
        )
