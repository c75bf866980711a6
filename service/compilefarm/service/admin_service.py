"""compilefarm.v1.AdminService on the wire."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing
from dataclasses import asdict

from compilefarm.core.pool import WorkerView
from compilefarm.core.starts import to_wire
from compilefarm.service.active_job import ActiveJob
from compilefarm.service.active_jobs import ActiveJobs
from compilefarm.service.best_known import best_known
from compilefarm.service.cache_report import describe_caches
from compilefarm.service.callers import current_caller
from compilefarm.service.clock import Clock
from compilefarm.service.device_seconds import DeviceSeconds
from compilefarm.service.fair_semaphore import FairSemaphore
from compilefarm.service.grpc_types import Context
from compilefarm.service.inspection import inspect
from compilefarm.service.job_control import JobControl
from compilefarm.service.matching import get_worker
from compilefarm.service.progress import ProgressMeter
from compilefarm.service.quarantine import Quarantined
from compilefarm.service.reports import Reports
from compilefarm.service.state_metrics import Sources
from compilefarm.service.trust_report import TrustReport
from compilefarm.service.tuned_artifacts import find_tuned
from compilefarm.service.wire_priorities import PRIORITIES
from compilefarm.v1 import admin_service_pb2 as wire
from compilefarm.v1.admin_service_pb2_grpc import AdminServiceServicer
from compilefarm.v1.compile_service_pb2 import Progress
from compilefarm.v1.job_pb2 import CompileFailure

# A client takes no answer of more than 4 MiB: nobody may make the list so long that it is not seen.
_MOST_LISTED = 1000
_LONGEST_MESSAGE = 500
_LONGEST_TAIL = 1000


class AdminService(AdminServiceServicer):
    """Adapts what the parts of the gateway tell about themselves to the wire."""

    def __init__(
        self,
        sources: Sources,
        *,
        jobs: ActiveJobs,
        control: JobControl,
        meter: ProgressMeter,
        trust: TrustReport,
        clock: Clock,
    ) -> None:
        self._sources = sources
        self._jobs = jobs
        self._control = control
        self._meter = meter
        self._trust = trust
        self._clock = clock
        self._started = clock.now()
        # The beginning of a key costs listings of the store.
        self._inspections = FairSemaphore("inspecting keys", places=8, account_places=2)

    async def Status(self, _request: wire.StatusRequest, _context: Context) -> wire.StatusResponse:
        sources, quarantined = self._sources, await best_known(self._control.count_quarantined())
        response = wire.StatusResponse(
            farm_version=sources.farm_version,
            workers=self._workers(),
            queued_jobs=sources.queue.waiting,
            running_jobs=sources.queue.running,
            counters=wire.Counters(**asdict(sources.counters)),
            store=await sources.store.usage(),
            state=sources.readiness.state(),
            quarantined_keys=quarantined.value or 0,
            store_failure=quarantined.failure,
            reports=_reports(sources.reports),
            trust=self._trust.for_caller(current_caller()),
            caches=describe_caches(sources.caches, counts=sources.cache_counts),
            device_seconds=_device_seconds(sources.device_seconds),
        )
        response.started.FromDatetime(self._started)
        response.now.FromDatetime(self._clock.now())
        return response

    async def Inspect(self, request: wire.InspectRequest, _context: Context) -> wire.InspectResponse:
        caller = current_caller()
        async with self._inspections.acquired(caller.account):
            found = await inspect(request.key, store=self._sources.store, namespaces=caller.seen)
        return wire.InspectResponse(manifest=found.manifest, checks=found.checks)

    async def ListJobs(self, _request: wire.ListJobsRequest, _context: Context) -> wire.ListJobsResponse:
        quarantined = await best_known(self._control.quarantined())
        return wire.ListJobsResponse(
            jobs=self._statuses(self._control.compiles()),
            quarantined=map(_quarantined, (quarantined.value or [])[-_MOST_LISTED:]),
            store_failure=quarantined.failure,
            checks=self._statuses(self._control.verifications()[:_MOST_LISTED]),
        )

    async def CancelJob(self, request: wire.CancelJobRequest, _context: Context) -> wire.CancelJobResponse:
        return wire.CancelJobResponse(key=self._control.cancel(request.key))

    async def RetryJob(self, request: wire.RetryJobRequest, _context: Context) -> wire.RetryJobResponse:
        return wire.RetryJobResponse(key=await self._control.retry(request.key))

    async def ListWorkers(self, _request: wire.ListWorkersRequest, _context: Context) -> wire.ListWorkersResponse:
        return wire.ListWorkersResponse(workers=self._workers())

    async def DescribeEnvironment(
        self, request: wire.DescribeEnvironmentRequest, _context: Context
    ) -> wire.DescribeEnvironmentResponse:
        view = get_worker(self._sources.queue.candidates(), environment_name=request.name)
        return wire.DescribeEnvironmentResponse(environment=view.environment, vocabulary=view.vocabulary)

    async def ListTuned(
        self, _request: wire.ListTunedRequest, _context: Context
    ) -> AsyncIterator[wire.ListTunedResponse]:
        caller = current_caller()
        async with self._inspections.acquired(caller.account):
            async for manifest in find_tuned(self._sources.store, namespaces=caller.seen):
                yield wire.ListTunedResponse(
                    key=manifest.key,
                    namespace=manifest.namespace,
                    environment=manifest.environment,
                    created=manifest.created,
                    sources=manifest.sources,
                )

    async def Drain(self, _request: wire.DrainRequest, _context: Context) -> AsyncIterator[wire.DrainResponse]:
        async with aclosing(self._jobs.drain()) as counts:
            async for _ in counts:
                yield wire.DrainResponse(
                    queued_jobs=self._sources.queue.waiting, running_jobs=self._sources.queue.running
                )

    def _workers(self) -> list[wire.Worker]:
        return [_worker(view, job=self._sources.queue.job_of(view.name)) for view in self._sources.queue.workers()]

    def _statuses(self, jobs: Iterable[ActiveJob]) -> list[wire.JobStatus]:
        return [_status(job, progress=self._meter.read(job)) for job in jobs]


def _worker(view: WorkerView, *, job: ActiveJob | None) -> wire.Worker:
    is_shown = job is not None and job.namespace in current_caller().seen
    return wire.Worker(
        name=view.name,
        state=view.state,
        environment=view.environment,
        job_key=job.key if job is not None and is_shown else "",
        is_warm=view.is_warm,
        problem=view.problem or "",
        environment_name=view.environment_name,
        sandbox=view.sandbox,
        no_sandbox=view.no_sandbox,
        host=view.host,
        node=view.node,
        start=to_wire(view.start),
    )


def _status(job: ActiveJob, *, progress: Progress) -> wire.JobStatus:
    return wire.JobStatus(
        key=job.key,
        phase=progress.phase,
        worker=progress.worker,
        priority=PRIORITIES[job.priority],
        tenant=job.tenant,
        namespace=job.namespace,
        waiting_requests=job.waiters.count,
        elapsed_seconds=progress.elapsed_seconds,
        jobs_ahead=progress.jobs_ahead,
        estimated_wait_seconds=progress.estimated_wait_seconds,
        waits_for=progress.waits_for,
    )


def _reports(reports: Reports) -> wire.ClientReports:
    return wire.ClientReports(
        graphs=reports.graphs.total(),
        fallbacks=reports.count("fallback"),
        bypasses=reports.count("bypass"),
        spent_seconds=reports.spent_seconds,
        avoided_seconds=reports.avoided_seconds,
        local_seconds=reports.local_seconds,
    )


def _device_seconds(seconds: DeviceSeconds) -> list[wire.DeviceSeconds]:
    users = sorted({*seconds.spent, *seconds.avoided})
    return [
        wire.DeviceSeconds(
            tenant=user.tenant,
            namespace=user.namespace,
            device=user.device,
            spent_seconds=seconds.spent[user],
            avoided_seconds=seconds.avoided[user],
        )
        for user in users
        if user.namespace in current_caller().seen
    ]


def _quarantined(quarantined: Quarantined) -> wire.QuarantinedKey:
    key = wire.QuarantinedKey(
        key=quarantined.key,
        namespace=quarantined.namespace,
        failure=_shortened(quarantined.failure),
        deaths=quarantined.deaths,
        refused=quarantined.refused,
    )
    key.since.FromDatetime(quarantined.since)
    key.until.FromDatetime(quarantined.until)
    return key


def _shortened(failure: CompileFailure) -> CompileFailure:
    """A failure with the beginning of its message and the end of what was printed."""
    short = CompileFailure()
    short.CopyFrom(failure)
    short.message = failure.message[:_LONGEST_MESSAGE]
    short.log_tail = failure.log_tail[-_LONGEST_TAIL:]
    return short
