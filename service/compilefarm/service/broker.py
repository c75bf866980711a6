"""Answers requests for artifacts: from the store, from a compile that is on its way, or by having one made."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from compilefarm.core.artifacts import ARTIFACT_FORMAT, blobs_of, compile_seconds_of
from compilefarm.core.errors import (
    Busy,
    Draining,
    FarmError,
    InvalidRequest,
    MissingBlobs,
    NoMatchingWorker,
    NotStored,
    ReadOnlyFarm,
    StoreUnavailable,
    WorkerLost,
)
from compilefarm.core.expressions import holds
from compilefarm.core.keys import UNNAMED_FORMAT, Key, choose_format, key_of
from compilefarm.core.pool import Artifact
from compilefarm.service.allowances import Allowance
from compilefarm.service.attempts import Attempts
from compilefarm.service.callers import Caller
from compilefarm.service.checks import Checks
from compilefarm.service.clock import Clock, pause
from compilefarm.service.constants import require_constants
from compilefarm.service.counters import Counters
from compilefarm.service.durations import Durations, Kind, kind_of
from compilefarm.service.flights import Flight, Flights, Landing, Source, Stage
from compilefarm.service.heavy_work import HeavyWork
from compilefarm.service.journal import Entry, Journal
from compilefarm.service.priorities import Priority
from compilefarm.service.quarantine import Quarantine
from compilefarm.service.queue import Queue
from compilefarm.service.roles import Role
from compilefarm.service.turns import Turns
from compilefarm.service.validation import validate
from compilefarm.service.wanted import WantedBlobs
from compilefarm.store.artifact_store import ArtifactStore
from compilefarm.store.blobs import few_at_a_time
from compilefarm.store.seals import Seal
from compilefarm.v1.compile_service_pb2 import Outcome, Prospect
from compilefarm.v1.job_pb2 import CompileFailure, FailureKind, Job, Phase
from compilefarm.v1.journal_pb2 import AcceptedJob
from compilefarm.v1.manifest_pb2 import VERIFY_TIME_AFTER, KeyPart, Manifest, VerifyTime

log = logging.getLogger(__name__)

# What the service does by itself goes on an account that no caller can have.
_OWN_ACCOUNT = " the service"
# Graphs whose tensors are looked for at a time; each looks for many.
_LOOKING = 8
_LOOKING_OF_ACCOUNT = 2
# Jobs that wait are held in memory. Measured: a value takes 4 bytes on the wire, and 49 when it is parsed.
_VALUE_BYTES = 48
_RESUMED_AT_ONCE = 16
_RESUME_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """The request was understood."""

    key: Key


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where the job stands; the words are those of compilefarm.v1.Progress."""

    phase: Phase.ValueType
    elapsed_seconds: float
    jobs_ahead: int
    worker: str
    estimated_wait_seconds: float
    estimated_compile_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """How the request ended."""

    outcome: Outcome.ValueType
    result: Manifest | CompileFailure


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a request would meet; the words are those of compilefarm.v1.PlanResponse."""

    key: Key
    prospect: Prospect.ValueType
    problem: str = ""
    compile_seconds: float


Event = Accepted | Progress | Finished


class Answering(Protocol):
    """What answers requests. Broker says what the methods do."""

    async def lookup(self, job: Job, *, caller: Caller) -> Manifest: ...

    async def plan(self, job: Job, *, caller: Caller) -> Plan: ...

    def compile(self, job: Job, *, caller: Caller, priority: Priority) -> AsyncGenerator[Event, None]: ...


class Broker:
    """Finds artifacts or has them made."""

    def __init__(
        self,
        *,
        store: ArtifactStore,
        seal: Seal,
        queue: Queue,
        attempts: Attempts,
        checks: Checks,
        journal: Journal | None,
        wanted: WantedBlobs,
        heavy: HeavyWork,
        waiting: Allowance,
        flights: Flights,
        durations: Durations,
        quarantine: Quarantine,
        counters: Counters,
        clock: Clock,
        read_only: bool,
        max_nodes: int,
        max_values: int,
        farm_version: str,
    ) -> None:
        self._store = store
        self._seal = seal
        self._queue = queue
        self._attempts = attempts
        self._checks = checks
        self._journal = journal
        self._wanted = wanted
        self._heavy = heavy
        self._flights = flights
        self._durations = durations
        self._quarantine = quarantine
        self._counters = counters
        self._clock = clock
        self._read_only = read_only
        self._max_nodes = max_nodes
        self._max_values = max_values
        self._farm_version = farm_version
        self._looking = Turns("looking for tensors of graphs", places=_LOOKING, account_places=_LOOKING_OF_ACCOUNT)
        self._waiting = waiting
        # Whether the last artifact could not be stored.
        self._storing_failed = False

    async def lookup(self, job: Job, *, caller: Caller) -> Manifest:
        """The artifact for a job, if it is stored where the caller may read.

        Raises:
            InvalidRequest: the job is malformed.
            NotStored: it is not.
            Draining: the service is going down.
            StoreUnavailable: the store cannot be read.
        """
        with self._counters.counting_refusals():
            key, _ = await self._admit(job, caller=caller)
        manifest = await self._store.find_manifest(key.text, namespaces=caller.namespaces, hints=job.hints)
        if manifest is None:
            self._counters.misses += 1
            raise NotStored(f"nothing that fits is stored under {key.text}; ask for a compile")
        self._counters.hits += 1
        self._checks.follow(manifest, job=job, kind=kind_of(job, key=key))
        return manifest

    async def plan(self, job: Job, *, caller: Caller) -> Plan:
        """What a request for a job would meet. Nothing is made, and no figure counts it.

        Raises:
            InvalidRequest: the job is malformed.
            Draining: the service is going down.
            StoreUnavailable: the store cannot be read.
        """
        key, _ = await self._admit(job, caller=caller)
        kind = kind_of(job, key=key)
        stored = await self._store.find_manifest(key.text, namespaces=caller.namespaces, hints=job.hints)
        if stored is not None:
            self._learn(stored, kind=kind)
            return Plan(key=key, prospect=Prospect.PROSPECT_HIT, compile_seconds=compile_seconds_of(stored))
        prospect, problem = self._prospect(job, key=key, namespaces=caller.namespaces)
        return Plan(key=key, prospect=prospect, problem=problem, compile_seconds=self._durations.estimate(kind))

    async def compile(self, job: Job, *, caller: Caller, priority: Priority) -> AsyncGenerator[Event, None]:
        """The artifact for a job, made if need be: yields Accepted, then any number of Progress, then Finished.

        The job goes on for a while when the iterator is closed, in case the caller comes back.

        Args:
            job: what is wanted.
            caller: who wants it.
            priority: how urgent it is.

        Raises:
            InvalidRequest: the job is malformed, or a worker found that it asks for what is not allowed.
            MissingBlobs: tensors that the graph holds are not stored.
            NoMatchingWorker: no worker can do it.
            Busy: too many jobs wait already.
            JobCancelled: an operator ended the job.
            Draining: the service is going down.
            WorkerLost: workers were lost on the job as often as it may be tried.
            StoreUnavailable: the store cannot be read, or the finished artifact could not be written.
        """
        with self._counters.counting_refusals(), self._waiting.using(caller.account) as add:
            key, values = await self._admit(job, caller=caller)
            add(values * _VALUE_BYTES)
            entry = None
            if self._journal is not None and priority is Priority.PREWARM and not self._read_only:
                entry = await self._journal.keep(
                    key,
                    job=job,
                    tenant=caller.tenant,
                    namespaces=caller.namespaces,
                    account=caller.account,
                )
            try:
                async with aclosing(self._events(job, key=key, caller=caller, priority=priority)) as events:
                    async for event in events:
                        yield event
            except FarmError as error:
                if isinstance(error, MissingBlobs):
                    self._wanted.note((held.digest for held in job.graph.constants), account=caller.account)
                # The caller knows. Of a service that goes down it knows that it may ask again, and need not.
                if entry is not None and self._journal is not None and not isinstance(error, Draining):
                    self._journal.remove(entry)
                raise

    async def resume(self, journal: Journal) -> None:
        """Does the jobs that a service before this one had accepted, a few at a time."""
        await few_at_a_time(partial(self._resume, journal=journal), journal.entries(), turns=_RESUMED_AT_ONCE)

    async def _resume(self, entry: Entry, *, journal: Journal) -> None:
        """Does one of them. What cannot be done at present is tried again: nobody else asks for it."""
        while (accepted := await asyncio.to_thread(journal.read, entry)) is not None:
            try:
                key = await self._redo(accepted)
                if key.text != accepted.key:
                    # An older release had accepted it, under a key that this one does not make.
                    journal.remove(entry)
            except (Busy, NoMatchingWorker, StoreUnavailable, WorkerLost) as error:
                log.warning("job %s: accepted before this service was started, and tried again: %s", entry.key, error)
                await pause(getattr(error, "retry_after_seconds", _RESUME_SECONDS), clock=self._clock)
            except Draining:
                return
            except FarmError as error:
                log.warning("job %s: accepted before this service was started, and given up: %s", entry.key, error)
                journal.remove(entry)
                return

    async def _redo(self, accepted: AcceptedJob) -> Key:
        caller = Caller(
            tenant=accepted.tenant,
            role=Role.PREWARM,
            namespaces=list(accepted.namespaces),
            key_formats=[accepted.key_format or UNNAMED_FORMAT],
            account=_OWN_ACCOUNT,
        )
        key, _ = await self._admit(accepted.job, caller=caller)
        async with aclosing(self._events(accepted.job, key=key, caller=caller, priority=Priority.PREWARM)) as events:
            async for _ in events:
                pass
        return key

    async def _events(self, job: Job, *, key: Key, caller: Caller, priority: Priority) -> AsyncGenerator[Event, None]:
        kind = kind_of(job, key=key)
        accepted = missed = False
        while True:
            work = partial(self._make, job=job, key=key, kind=kind, namespaces=caller.namespaces)
            boarded = self._flights.board(
                key.text,
                namespaces=caller.namespaces,
                work=work,
                tenant=caller.tenant,
                priority=priority,
                hints=job.hints,
                account=caller.account,
            )
            with boarded as boarding:
                if not accepted:
                    accepted = True
                    yield Accepted(key=key)
                async with aclosing(self._flights.watch(boarding)) as stages:
                    async for stage in stages:
                        if not missed:
                            missed = True
                            self._counters.misses += 1
                            if not boarding.leads:
                                self._counters.joins += 1
                                log.info("job %s: joined by another request", key.text)
                        yield self._progress(boarding.flight, stage=stage, kind=kind)
            try:
                landing = boarding.flight.landing()
            except (Busy, InvalidRequest) as error:
                # It was refused to whoever asked first: for the share of that tenant, or for those hints.
                if boarding.leads or (isinstance(error, InvalidRequest) and _has_hints_of(boarding.flight, job)):
                    raise
                continue
            # A variant that another request had made may have guards that this one does not meet, and what failed for
            # the hints of another may succeed for these. Who leads a flight gets what fits.
            if boarding.leads or _fits(landing, flight=boarding.flight, job=job):
                break
        self._counters.hits += landing.source is Source.STORE
        self._counters.quarantined += landing.source is Source.QUARANTINE
        yield Finished(outcome=_outcome(landing, leads=boarding.leads), result=landing.result)

    async def _admit(self, job: Job, *, caller: Caller) -> tuple[Key, int]:
        """The key of a job, and how many values it has."""
        examine = partial(self._examine, job, format=choose_format(caller.key_formats))
        examined = await self._heavy.run(examine, size_bytes=job.ByteSize(), account=caller.account)
        self._flights.check_open()
        return examined

    def _examine(self, job: Job, *, format: int) -> tuple[Key, int]:
        values = validate(job, max_nodes=self._max_nodes, max_values=self._max_values)
        return key_of(job, format=format), values

    async def _make(self, flight: Flight, *, job: Job, key: Key, kind: Kind, namespaces: Sequence[str]) -> Landing:
        stored = await self._store.find_manifest(key.text, namespaces=namespaces, hints=job.hints)
        if stored is not None:
            self._learn(stored, kind=kind)
            self._checks.follow(stored, job=job, kind=kind)
            return Landing(result=stored, source=Source.STORE)
        quarantined = self._quarantine.find(key.text, namespaces=namespaces)
        if quarantined is not None:
            return Landing(result=quarantined.failure, source=Source.QUARANTINE)
        if self._read_only:
            raise ReadOnlyFarm(
                f"nothing that fits is stored under {key.text}, and this farm serves its store read-only: compile "
                "locally, or ask a farm that compiles"
            )
        await self._require_writable_store()
        if job.graph.constants:
            async with self._looking.taken(flight.account):
                await require_constants(job, store=self._store)
        await self._seal.announce(key.text, namespace=flight.namespace)
        verify_time = await self._checks.time_for(key.text, namespaces=namespaces)
        flight.ticket = self._queue.enrol(key.text, environment=job.environment, demand=flight.claims.demand, kind=kind)
        log.info("job %s: %d nodes, queued", key.text, len(job.graph.nodes))
        flight.enter(Phase.PHASE_QUEUED)
        made = await self._attempts.compile(
            job,
            ticket=flight.ticket,
            namespace=flight.namespace,
            on_stage=flight.enter,
            verify=verify_time != VERIFY_TIME_AFTER,
        )
        seconds = self._clock.monotonic() - flight.started_seconds
        if isinstance(made, CompileFailure):
            self._counters.failed += 1
            if made.kind == FailureKind.FAILURE_KIND_UNEXPECTED_SOURCE:
                self._counters.unexpected_sources += 1
                log.error("job %s: an attack on this farm, or a fault of it: %s", key.text, made.message)
            reason = FailureKind.Name(made.kind)
            log.warning("job %s: no artifact after %.1f s: %s %s", key.text, seconds, reason, made.message)
            if made.log_tail:
                log.warning("job %s: the end of what its process printed:\n%s", key.text, made.log_tail)
            await self._checks.keep_failure(made, job=job, key=key.text, namespace=flight.namespace)
            return Landing(result=made, source=Source.COMPILE)
        manifest = await self._keep(made, key=key, namespace=flight.namespace, verify_time=verify_time)
        self._checks.follow(manifest, job=job, kind=kind)
        size_bytes = sum(blob.size_bytes for blob in blobs_of(manifest))
        log.info("job %s: %s made %d bytes in %.1f s", key.text, manifest.worker, size_bytes, seconds)
        return Landing(result=manifest, source=Source.COMPILE)

    async def _require_writable_store(self) -> None:
        """Passes unless an artifact could not be stored, and the store still cannot be written: no compile is wasted.

        Raises:
            StoreUnavailable: it cannot.
        """
        if not self._storing_failed:
            return
        try:
            await self._store.probe()
        except StoreUnavailable as error:
            raise StoreUnavailable(
                f"nothing is compiled, since the artifact could not be stored: {error}. What is stored is served; "
                "compile locally, and ask again when the store can be written, or have the farm run with --read-only"
            ) from error
        log.info("the store takes artifacts again")
        self._storing_failed = False

    def _prospect(self, job: Job, *, key: Key, namespaces: Sequence[str]) -> tuple[Prospect.ValueType, str]:
        quarantined = self._quarantine.find(key.text, namespaces=namespaces)
        if quarantined is not None:
            return Prospect.PROSPECT_QUARANTINED, quarantined.failure.message
        if self._flights.is_working(key.text, namespaces=namespaces):
            return Prospect.PROSPECT_UNDER_WAY, ""
        try:
            self._queue.check(job.environment)
        except NoMatchingWorker as error:
            return Prospect.PROSPECT_NO_WORKER, str(error)
        return Prospect.PROSPECT_MISS, ""

    def _learn(self, stored: Manifest, *, kind: Kind) -> None:
        if stored.timings:
            self._durations.note_earlier(kind, seconds=sum(timing.seconds for timing in stored.timings))

    async def _keep(
        self, artifact: Artifact, *, key: Key, namespace: str, verify_time: VerifyTime.ValueType
    ) -> Manifest:
        """Stores a finished artifact.

        When that fails the artifact is given up, loudly: clients read its blobs from the store, so a manifest without
        them would only send them looking for what is not there. Remote stores retry by themselves before they fail.
        """
        try:
            described = self._describe(artifact, key=key, namespace=namespace)
            described.verify_time = verify_time
            manifest = await self._store.put_artifact(described, blobs=artifact.blobs)
        except StoreUnavailable as error:
            self._storing_failed = True
            self._counters.failed += 1
            log.error("job %s: its artifact is lost; none is made until the store can be written: %s", key.text, error)
            raise StoreUnavailable(
                f"the compile of {key.text} succeeded but its artifact could not be stored and is lost ({error}); "
                "compile locally, and ask again when the store can be written"
            ) from error
        self._counters.compiled += 1
        return manifest

    def _describe(self, artifact: Artifact, *, key: Key, namespace: str) -> Manifest:
        manifest = Manifest()
        manifest.CopyFrom(artifact.manifest)
        # A worker has no say in whose it is and who vouches for it.
        manifest.ClearField("signature")
        manifest.namespace = namespace
        del manifest.key_parts[:]
        manifest.key = key.text
        manifest.key_format = key.format
        manifest.key_parts.extend(KeyPart(name=part.name, digest=part.digest) for part in key.parts)
        manifest.format = ARTIFACT_FORMAT
        manifest.farm_version = self._farm_version
        manifest.created.FromDatetime(self._clock.now())
        return manifest

    def _progress(self, flight: Flight, *, stage: Stage, kind: Kind) -> Progress:
        outlook = self._queue.outlook(flight.ticket)
        return Progress(
            phase=stage.phase,
            elapsed_seconds=self._clock.monotonic() - flight.started_seconds,
            jobs_ahead=outlook.jobs_ahead,
            worker=stage.worker,
            estimated_wait_seconds=outlook.wait_seconds,
            estimated_compile_seconds=self._durations.estimate(kind),
        )


def _fits(landing: Landing, *, flight: Flight, job: Job) -> bool:
    if isinstance(landing.result, Manifest):
        return holds(landing.result.guards, job.hints)
    return landing.source is not Source.COMPILE or _has_hints_of(flight, job)


def _has_hints_of(flight: Flight, job: Job) -> bool:
    return flight.hints == tuple(job.hints)


def _outcome(landing: Landing, *, leads: bool) -> Outcome.ValueType:
    if landing.source is Source.STORE:
        return Outcome.OUTCOME_HIT
    if landing.source is Source.QUARANTINE:
        return Outcome.OUTCOME_QUARANTINED
    return Outcome.OUTCOME_COMPILED if leads else Outcome.OUTCOME_JOINED
