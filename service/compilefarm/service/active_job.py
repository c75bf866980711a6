"""A job that the gateway is working on: one object, with one state at a time.

    LOOKING_UP ──► FOUND         stored already
        │ │ └────► REMEMBERED    it failed lately, and is not tried again for a while
        │ └──────► FAILED        a verification: the store says that the artifact is wrong
        ▼
      QUEUED ◄───┐               waits for a worker; again when it lost the one that it had
        ▼        │
     RUNNING ────┘               a worker has it, and says in which phase it is
        ▼
     STORING                     what came of it is written
        ├────────► STORED
        └────────► FAILED        the compile or the verification failed; why is the result

    any of these ► ENDED         an error ended it before it had a result

Before it is queued, or when it has a worker, it may turn out that another gateway compiles it, or has compiled it:

     LOOKING_UP, RUNNING ──► ELSEWHERE ──► FOUND, REMEMBERED, FAILED, or QUEUED if nothing came of that

Metrics, logs, counts and the journal of prewarms are JobObservers.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import cached_property, partial
from typing import Protocol

from compilefarm.core.errors import FarmError, JobCancelled
from compilefarm.service.clock import Clock
from compilefarm.service.durations import Kind
from compilefarm.service.incidents import incident
from compilefarm.service.log_context import job_key
from compilefarm.service.matching import Requirement
from compilefarm.service.priorities import Priority
from compilefarm.service.requests import AdmittedRequest
from compilefarm.service.waiters import Waiters
from compilefarm.v1.job_pb2 import CompileFailure, Job, Phase
from compilefarm.v1.manifest_pb2 import Manifest

_numbers = itertools.count()


class Purpose(Enum):
    """The purpose of a job: to compile or to verify."""

    COMPILE = auto()
    VERIFY = auto()


class State(Enum):
    """The state of a job, as in the picture above."""

    LOOKING_UP = auto()
    QUEUED = auto()
    ELSEWHERE = auto()
    RUNNING = auto()
    STORING = auto()
    FOUND = auto()
    STORED = auto()
    FAILED = auto()
    REMEMBERED = auto()
    ENDED = auto()


_NEXT: Mapping[State, frozenset[State]] = {
    State.LOOKING_UP: frozenset(
        {State.QUEUED, State.ELSEWHERE, State.FOUND, State.REMEMBERED, State.FAILED, State.ENDED}
    ),
    State.QUEUED: frozenset({State.RUNNING, State.ENDED}),
    State.ELSEWHERE: frozenset(
        {State.QUEUED, State.ELSEWHERE, State.FOUND, State.REMEMBERED, State.FAILED, State.ENDED}
    ),
    State.RUNNING: frozenset(
        {State.QUEUED, State.ELSEWHERE, State.STORING, State.FOUND, State.REMEMBERED, State.ENDED}
    ),
    State.STORING: frozenset({State.STORED, State.FAILED, State.ENDED}),
}
_OVER = frozenset(State) - _NEXT.keys()
_UNDER_WAY = frozenset({State.QUEUED, State.ELSEWHERE, State.RUNNING, State.STORING})


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A phase that a job entered.

    Attributes:
        phase: the phase.
        worker: the worker that has the job; empty while it is queued.
        since_seconds: when it entered the phase, by the clock.
        waits_for: what it waits for, for people, where that is no worker of this gateway; empty otherwise.
    """

    phase: Phase.ValueType
    worker: str
    since_seconds: float
    waits_for: str = ""


class JobObserver(Protocol):
    """Observes jobs, and decides nothing about them."""

    def changed(self, job: ActiveJob, *, before: State, cause: Exception | None) -> None:
        """A job is in another state.

        Args:
            job: the job, as it stands.
            before: the state that it was in.
            cause: why it lost its worker, or was ended; None otherwise.
        """


# Does what a job is for, and takes it from state to state until it is over.
Work = Callable[["ActiveJob"], Awaitable[None]]


class ActiveJob:
    """A job that the gateway is working on.

    Attributes:
        request: the one that it began with.
        namespace: in which its result will lie.
        tenant: for whom it is done. The job counts as theirs, whoever joins it.
        purpose: what it is for.
        waiters: the requests that wait for it.
        number: jobs are numbered as they come.
        started_seconds: when it came, by the clock.
        state: where it stands.
        stages: the phases that it was in, in order; none before it is queued.
        worker: name of the worker that has it, or had it last.
        was_elsewhere: whether its result, if it has one, is what came of the compile of another gateway.
        lost_workers: names of the workers that were lost on it, one for each attempt; others are preferred.
        result: what came of it; None before that, and when it was ended.
        error: what ended it; None otherwise.

    Args:
        request: the one that it begins with.
        namespace, tenant, purpose, waiters: see above.
        clock: time.
        observers: are told of each change.
    """

    def __init__(
        self,
        request: AdmittedRequest,
        *,
        namespace: str,
        tenant: str,
        waiters: Waiters,
        clock: Clock,
        purpose: Purpose = Purpose.COMPILE,
        observers: Sequence[JobObserver] = (),
    ) -> None:
        self.request = request
        self.namespace = namespace
        self.tenant = tenant
        self.purpose = purpose
        self.waiters = waiters
        self.number = next(_numbers)
        self.started_seconds = clock.monotonic()
        self.state = State.LOOKING_UP
        self.stages: list[Stage] = []
        self.worker = ""
        self.was_elsewhere = False
        self.lost_workers: list[str] = []
        self.result: Manifest | CompileFailure | None = None
        self.error: FarmError | None = None
        self._clock = clock
        self._observers = observers
        self._news: set[asyncio.Future[bool]] = set()
        # Of those who want to know of its end alone.
        self._ends: set[asyncio.Future[bool]] = set()
        self._given_up: FarmError | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def key(self) -> str:
        """The key, as users see it."""
        return self.request.key.text

    @property
    def job(self) -> Job:
        """The job to be done."""
        return self.request.job

    @property
    def kind(self) -> Kind:
        """The kind of the job: jobs of a kind take about equally long."""
        return self.request.kind

    @property
    def priority(self) -> Priority:
        """The current priority."""
        return self.waiters.priority

    @cached_property
    def requirement(self) -> Requirement:
        """The environment that it needs."""
        return Requirement(self.job.environment)

    @property
    def is_over(self) -> bool:
        """Whether the job has a result, or was ended."""
        return self.state in _OVER

    @property
    def is_under_way(self) -> bool:
        """Whether the job waits for a worker or is being done."""
        return self.state in _UNDER_WAY

    @property
    def stage(self) -> Stage:
        """The current phase and its worker. A job that is looked up in the store counts as waiting."""
        return self.stages[-1] if self.stages else self._stage(Phase.PHASE_QUEUED)

    @property
    def elapsed_seconds(self) -> float:
        """Since it came."""
        return self._clock.monotonic() - self.started_seconds

    def begin(self, work: Work) -> asyncio.Task[None]:
        """Starts the job in a task of its own, which belongs to no connection. The task never fails."""
        self._task = asyncio.create_task(self._do(work), name=f"job {self.key}")
        self._task.add_done_callback(self._end_task)
        return self._task

    def queue(self, *, cause: Exception | None = None) -> None:
        """Enters the state QUEUED: the job waits for a worker.

        Args:
            cause: why it lost the one that it had.
        """
        self.was_elsewhere = False
        self.stages.append(self._stage(Phase.PHASE_QUEUED))
        self._change(State.QUEUED, cause=cause)

    def leave_to(self, gateway: str) -> None:
        """Another gateway compiles it, and this one waits for what comes of that."""
        self.was_elsewhere = True
        stage = self._stage(Phase.PHASE_QUEUED)
        self.stages.append(replace(stage, waits_for=f"another gateway, {gateway}, which compiles it"))
        self._change(State.ELSEWHERE)

    def start(self, worker: str) -> None:
        """A worker has it. It stays in its phase until the worker says what it does."""
        self.worker = worker
        self._change(State.RUNNING)

    def enter_phase(self, phase: Phase.ValueType) -> None:
        """The worker that has it enters a phase."""
        self.stages.append(self._stage(phase, worker=self.worker))
        self._wake()

    def store(self) -> None:
        """The worker is done with it, and what came of it is written."""
        self._change(State.STORING)

    def finish(self, state: State, result: Manifest | CompileFailure) -> None:
        """Finishes the job with a result.

        Args:
            state: how it ended.
            result: what came of it.
        """
        self.result = result
        self._change(state)

    def give_up(self, why: FarmError) -> None:
        """Ends the job before it is done; it is over as soon as its worker is free. Those who wait get `why`."""
        self._given_up = why
        self.waiters.close()
        if self._task is not None:
            self._task.cancel()

    async def changes_within(self, seconds: float) -> bool:
        """Waits until it enters a state or a phase. False if it does not for that long."""
        return await self._told_within(seconds, among=self._news)

    async def ends_within(self, seconds: float) -> bool:
        """Waits until it is over. False if it is not for that long."""
        return self.is_over or await self._told_within(seconds, among=self._ends)

    async def _told_within(self, seconds: float, *, among: set[asyncio.Future[bool]]) -> bool:
        news: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        timer = self._clock.call_later(seconds, partial(_settle, news, False))
        among.add(news)
        try:
            return await news
        finally:
            timer.cancel()
            among.discard(news)

    async def _do(self, work: Work) -> None:
        job_key.set(self.key)
        try:
            await work(self)
        except FarmError as error:
            self._end(error)
        except Exception as error:  # noqa: BLE001 - logged with its traceback by `incident`
            self._end(incident(error, during=f"the {self.purpose.name.lower()} job {self.key}"))

    def _end_task(self, task: asyncio.Task[None]) -> None:
        if not self.is_over:
            assert task.cancelled(), f"the work of job {self.key} ended in state {self.state}"
            self._end(self._given_up or JobCancelled("the service ended"))

    def _end(self, error: FarmError) -> None:
        self.error = error
        self._change(State.ENDED, cause=error)

    def _change(self, state: State, *, cause: Exception | None = None) -> None:
        before = self.state
        assert state in _NEXT.get(before, ()), f"job {self.key} cannot go from {before} to {state}"
        self.state = state
        if self.is_over:
            self.waiters.close()
        for observer in self._observers:
            self._tell(observer, before=before, cause=cause)
        self._wake()

    def _tell(self, observer: JobObserver, *, before: State, cause: Exception | None) -> None:
        try:
            observer.changed(self, before=before, cause=cause)
        except Exception as error:  # noqa: BLE001 - logged with its traceback; who only observes changes no result
            incident(error, during=f"what observes job {self.key}")

    def _stage(self, phase: Phase.ValueType, *, worker: str = "") -> Stage:
        return Stage(phase=phase, worker=worker, since_seconds=self._clock.monotonic())

    def _wake(self) -> None:
        for news in (*self._news, *(self._ends if self.is_over else ())):
            _settle(news, True)


def _settle(news: asyncio.Future[bool], value: bool) -> None:
    if not news.done():
        news.set_result(value)
