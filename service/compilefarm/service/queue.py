"""The queue of jobs that wait for a worker, and the leases of those that have one."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import islice

from compilefarm.core.errors import NoMatchingWorker
from compilefarm.core.pool import Scaling, WorkerPool, WorkerView
from compilefarm.service.active_job import ActiveJob
from compilefarm.service.clock import Clock, Timer
from compilefarm.service.declared_environments import DeclaredEnvironments
from compilefarm.service.durations import Durations
from compilefarm.service.fairness import Group, Shares, in_order
from compilefarm.service.forecast import HAS_STARTED, Outlook, forecast
from compilefarm.service.leases import Lease, Leases
from compilefarm.service.limits import Delay, Limits
from compilefarm.service.lines import Line, Lines
from compilefarm.service.matching import Requirement, Roster
from compilefarm.service.offers import Offers
from compilefarm.service.preemption import to_be_revoked
from compilefarm.service.priorities import Priority
from compilefarm.service.recovery import Recovery
from compilefarm.service.slots import Slots
from compilefarm.v1.admin_service_pb2 import WorkerState
from compilefarm.v1.environment_pb2 import Environment

log = logging.getLogger(__name__)

# A pool does not say when a worker fails or recovers, so while jobs wait it is asked this often.
_LOOK_SECONDS = 1.0
# As long as jobs and workers are no more than this, each change is forecast at once; of more, it is done this often.
_FORECAST_AT_ONCE = 200
_FORECAST_SECONDS = 1.0
# Jobs that are further behind can expect what the last of these can, and more by their number.
_MOST_FORECAST = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentJobs:
    """Jobs by the name of their environment.

    Attributes:
        waiting: that wait for a worker; one that several environments could do, for the first of them.
        running: that have one.
    """

    waiting: Counter[str]
    running: Counter[str]


class Queue:
    """Leases the idle workers of a pool to the jobs that wait for them, and takes those of preemptible jobs back when
    an interactive one finds none.

    Args:
        pool: the workers.
        clock: time.
        limits: how many jobs may wait.
        durations: what is known of how long jobs take.
        recovery: which workers that have failed are waited for.
        slots: how many workers a tenant may have at a time.
        declared: environments that need no worker to have jobs wait for them.
    """

    def __init__(
        self,
        pool: WorkerPool,
        *,
        clock: Clock,
        limits: Limits,
        durations: Durations,
        recovery: Recovery,
        slots: Slots,
        declared: DeclaredEnvironments,
    ) -> None:
        self._pool = pool
        self._clock = clock
        self._limits = limits
        self._durations = durations
        self._recovery = recovery
        self._slots = slots
        self._declared = declared
        self._is_open = False
        self._waiting: dict[ActiveJob, asyncio.Future[Lease]] = {}
        # Those of them that have neither got a worker nor been turned away, and were not seen to be given up.
        self._lines = Lines()
        self._leases = Leases()
        self._turns: dict[Group, int] = {}
        self._roster = Roster(())
        self._next_look: Timer | None = None
        # As they were when they were looked at last, when that was, and whether something has changed since.
        self._outlooks: dict[ActiveJob, Outlook] = {}
        self._foreseen_seconds = -_FORECAST_SECONDS
        self._has_changed = True

    def open(self) -> None:
        """Begins to lease workers. Until then jobs wait."""
        self._is_open = True
        self._dispatch()

    @property
    def waiting(self) -> int:
        """Jobs that wait for a worker."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Jobs that have a worker."""
        return len(self._leases)

    def workers(self) -> list[WorkerView]:
        """The workers, in the pool's order; those that have a job are busy."""
        return [self._with_lease(view) for view in self._pool.workers()]

    def job_of(self, worker: str) -> ActiveJob | None:
        """The job that a worker has, if it has one."""
        lease = self._leases.get(worker)
        return None if lease is None else lease.job

    def describe_worker(self, name: str) -> str:
        """Returns where a worker is and what it compiles for, for people."""
        return next((worker.place for worker in self._pool.workers() if worker.name == name), "it is gone")

    def candidates(self) -> list[WorkerView]:
        """The workers, and one that is on its way for each declared environment that has none."""
        return list(self._look().workers)

    def awaited(self, job: ActiveJob) -> str:
        """Returns what a job waits for, for people, where that is no worker that is there; empty otherwise."""
        return self._roster.awaited_by(job.requirement) if job in self._lines else ""

    def jobs_by_environment(self) -> EnvironmentJobs:
        """Counts the jobs of each environment."""
        environments = {worker.name: worker.environment_name for worker in self._pool.workers()}
        running = Counter(environments[name] for name in self._leases if name in environments)
        return EnvironmentJobs(waiting=self._waiting_by_environment(), running=running)

    def require_room(self, job: ActiveJob) -> None:
        """Passes if a job may wait for a worker.

        Raises:
            NoMatchingWorker: no worker can do it.
            Busy: too many wait already.
        """
        self._look().require(job.requirement)
        if not self._is_open or self._offers().find(job) is None:
            self._limits.require_room(job, waiting=self._lines, foresee=self._delay)

    def require_worker(self, environment: Environment) -> str:
        """Passes if some worker compiles for an environment, however busy it is, or one might be started that does.
        Returns what a job would wait for, as `awaited`.

        Raises:
            NoMatchingWorker: none does.
        """
        roster, requirement = self._look(), Requirement(environment)
        roster.require(requirement)
        return roster.awaited_by(requirement)

    def outlook(self, job: ActiveJob) -> Outlook:
        """Returns the outlook of a job: all zero once it has a worker, and as long as it is not in the queue."""
        if job not in self._lines:
            return HAS_STARTED
        outlooks = self._all_outlooks()
        outlook = outlooks.get(job) or _outlook_behind(outlooks, jobs=len(self._lines))
        return outlook.after(self._clock.monotonic() - self._foreseen_seconds)

    def reconsider(self, job: ActiveJob) -> None:
        """Takes into account that the priority of a job has changed."""
        self._lines.renew(job)
        self._leases.renew(job)
        self._dispatch()

    @asynccontextmanager
    async def worker(self, job: ActiveJob) -> AsyncIterator[str]:
        """Waits until it is the job's turn and leases it a worker, whose name is yielded.

        Raises:
            NoMatchingWorker: the workers that could have done it are gone.
            Preempted: the worker was taken back.
        """
        lease = await self._wait(job)
        try:
            async with lease.held():
                yield lease.worker
        finally:
            self._end(lease)

    async def _wait(self, job: ActiveJob) -> Lease:
        turn: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        self._waiting[job] = turn
        self._lines.add(job)
        self._dispatch()
        try:
            return await turn
        except asyncio.CancelledError:
            # A worker may have been given to the job between the cancellation and this line.
            if not turn.cancelled() and turn.exception() is None:
                self._end(turn.result())
            raise
        finally:
            self._leave(job)

    def _end(self, lease: Lease) -> None:
        self._leases.remove(lease)
        self._dispatch()

    def _dispatch(self) -> None:
        self._has_changed = True
        self._look()
        self._turn_away()
        if self._is_open and self._lines:
            offers = self._offers()
            self._lease(offers)
            self._revoke(offers)
        if isinstance(self._pool, Scaling):
            self._pool.expect(self._waiting_by_environment())
        if self._waiting and self._next_look is None:
            self._next_look = self._clock.call_later(_LOOK_SECONDS, self._look_again)

    def _look_again(self) -> None:
        self._next_look = None
        self._dispatch()

    def _waiting_by_environment(self) -> Counter[str]:
        jobs: Counter[str] = Counter()
        for line in self._lines:
            for name in self._roster.environment_names(line.requirement)[:1]:
                jobs[name] += len(line.jobs)
        return jobs

    def _look(self) -> Roster:
        workers = self._pool.workers()
        absent = self._declared.absent(workers)
        if not self._roster.is_of(workers, absent=absent):
            expected = self._recovery.expected(workers)
            self._roster = Roster(workers, expected=expected, absent=absent, before=self._roster)
        return self._roster

    def _offers(self) -> Offers:
        return Offers(self._roster, leases=self._leases, slots=self._slots)

    def _leave(self, job: ActiveJob) -> asyncio.Future[Lease] | None:
        """Has a job wait no more."""
        self._lines.remove(job)
        self._has_changed = True
        return self._waiting.pop(job, None)

    def _turn_away(self) -> None:
        """Tells jobs for which there is no worker any more."""
        lost = [line for line in self._lines if not self._roster.fitting(line.requirement)]
        for job in [job for line in lost for job in line.jobs]:
            try:
                self._roster.require(job.requirement)
            except NoMatchingWorker as error:
                turn = self._leave(job)
                if turn is not None and not turn.done():
                    turn.set_exception(error)

    def _lease(self, offers: Offers) -> None:
        """Gives the idle workers to those whose turn it is."""
        if not offers.idle and not offers.kept:
            return
        shares = self._shares()
        while takers := {job: worker for job in self._next(offers) if (worker := offers.find(job)) is not None}:
            job = min(takers, key=shares.rank)
            lease = Lease(job, worker=takers[job], since_seconds=self._clock.monotonic())
            offers.take(job, worker=lease.worker)
            shares.take(job)
            self._leases.add(lease)
            turn = self._leave(job)
            assert turn is not None
            turn.set_result(lease)
        self._turns = shares.turns

    def _revoke(self, offers: Offers) -> None:
        """Takes workers back for interactive jobs that found none."""
        urgent = [line for line in self._lines if line.priority is Priority.INTERACTIVE]
        if not urgent or not self._leases.has_preemptible:
            return
        # A job needs one at most.
        each = [line.jobs[: len(self._leases)] for line in urgent if offers.has_room(line.jobs[0])]
        waiting = sorted((job for jobs in each for job in jobs if self._waits(job)), key=lambda job: job.number)
        for lease in to_be_revoked(waiting, leases=self._leases.values(), roster=self._roster):
            log.info("job %s makes room for an interactive one", lease.job.key)
            lease.revoke()

    def _next(self, offers: Offers) -> Iterator[ActiveJob]:
        """Those of which one is the next: the first of each line, and those that a worker is kept for."""
        yield from self._heads()
        if offers.kept:
            yield from [job for job in self._lines.jobs() if job.key in offers.kept and self._waits(job)]

    def _heads(self) -> Iterator[ActiveJob]:
        """The first job of each line."""
        for line in list(self._lines):
            # One that has just been given up has not left yet.
            while line.jobs and not self._waits(line.jobs[0]):
                self._lines.remove(line.jobs[0])
            yield from line.jobs[:1]

    def _waits(self, job: ActiveJob) -> bool:
        return not self._waiting[job].done()

    def _all_outlooks(self) -> dict[ActiveJob, Outlook]:
        age_seconds = self._clock.monotonic() - self._foreseen_seconds
        if self._has_changed and (self._is_small or age_seconds >= _FORECAST_SECONDS):
            self._outlooks = self._foresee([line.jobs for line in self._lines])
            self._foreseen_seconds = self._clock.monotonic()
            self._has_changed = False
        return self._outlooks

    @property
    def _is_small(self) -> bool:
        return len(self._lines) + len(self._roster.workers) <= _FORECAST_AT_ONCE

    def _delay(self, lines: Sequence[Line], job: ActiveJob) -> Delay:
        """What a job can expect that would stand behind some lines."""
        if not self._is_small:
            outlooks = self._all_outlooks()
            behind = _outlook_behind(outlooks, jobs=len(self._lines))
            room_seconds = min((each.wait_seconds for each in outlooks.values()), default=0.0)
            return Delay(room_seconds=room_seconds, wait_seconds=behind.wait_seconds)
        outlooks = self._foresee([*(line.jobs for line in lines), [job]])
        own = outlooks.pop(job)
        room_seconds = min((each.wait_seconds for each in outlooks.values()), default=0.0)
        return Delay(room_seconds=room_seconds, wait_seconds=own.wait_seconds)

    def _foresee(self, lines: Iterable[Sequence[ActiveJob]]) -> dict[ActiveJob, Outlook]:
        return forecast(
            islice(in_order(lines, shares=self._shares()), _MOST_FORECAST),
            roster=self._roster,
            leases=self._leases.values(),
            durations=self._durations,
            now_seconds=self._clock.monotonic(),
        )

    def _shares(self) -> Shares:
        executing = self._leases.executing
        # Tenants come and go: those that want nothing are forgotten.
        present = {*executing, *(line.group for line in self._lines)}
        return Shares(executing=executing, turns={group: self._turns[group] for group in present & self._turns.keys()})

    def _with_lease(self, view: WorkerView) -> WorkerView:
        is_busy = view.name in self._leases and view.state == WorkerState.WORKER_STATE_IDLE
        return replace(view, state=WorkerState.WORKER_STATE_BUSY) if is_busy else view


def _outlook_behind(outlooks: dict[ActiveJob, Outlook], *, jobs: int) -> Outlook:
    """What a job can expect that stands behind all that were looked at, of some number of jobs."""
    if not outlooks:
        return Outlook(jobs_ahead=max(jobs - 1, 0), wait_seconds=0.0)
    last = next(reversed(outlooks.values()))
    return Outlook(jobs_ahead=max(jobs - 1, 0), wait_seconds=last.wait_seconds * max(jobs / len(outlooks), 1.0))
