"""The queue of jobs that wait for a worker, and the leases of those that have one."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from compilefarm.core.errors import NoMatchingWorker
from compilefarm.core.pool import Scaling, WorkerPool, WorkerView
from compilefarm.service.active_job import ActiveJob
from compilefarm.service.clock import Clock, Timer
from compilefarm.service.declared_environments import DeclaredEnvironments
from compilefarm.service.durations import Durations
from compilefarm.service.fairness import Group, Shares, group_of, in_order
from compilefarm.service.forecast import HAS_STARTED, Outlook, forecast
from compilefarm.service.leases import Lease
from compilefarm.service.limits import Limits
from compilefarm.service.matching import Requirement, Roster
from compilefarm.service.preemption import to_be_revoked
from compilefarm.service.recovery import Recovery
from compilefarm.service.slots import Slots
from compilefarm.v1.admin_service_pb2 import WorkerState
from compilefarm.v1.environment_pb2 import Environment

log = logging.getLogger(__name__)

# A pool does not say when a worker fails or recovers, so while jobs wait it is asked this often.
_LOOK_SECONDS = 1.0


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
        # By the name of the worker.
        self._leases: dict[str, Lease] = {}
        self._turns: dict[Group, int] = {}
        self._roster = Roster(())
        self._next_look: Timer | None = None
        # As they were when the queue changed last, and when that was.
        self._outlooks: dict[ActiveJob, Outlook] | None = None
        self._changed_seconds = 0.0

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

    def candidates(self) -> list[WorkerView]:
        """The workers, and one that is on its way for each declared environment that has none."""
        return list(self._look().workers)

    def awaited(self, job: ActiveJob) -> str:
        """Returns what a job waits for, for people, where that is no worker that is there; empty otherwise."""
        return self._roster.awaited_by(job.requirement) if job in self._waiting else ""

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
        self._roster = self._look()
        self._roster.require(job.requirement)
        if self._find_worker(job, idle=self._idle()) is None:
            self._limits.require_room(job, waiting=self._waiting, foresee=self._foresee)

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
        if self._outlooks is None:
            self._changed_seconds = self._clock.monotonic()
            self._outlooks = self._foresee(self._waiting)
        outlook = self._outlooks.get(job, HAS_STARTED)
        return outlook.after(self._clock.monotonic() - self._changed_seconds)

    def reconsider(self) -> None:
        """Takes into account that the priorities of jobs have changed."""
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
        self._dispatch()
        try:
            return await turn
        except asyncio.CancelledError:
            # A worker may have been given to the job between the cancellation and this line.
            if not turn.cancelled() and turn.exception() is None:
                self._end(turn.result())
            raise
        finally:
            if self._waiting.pop(job, None) is not None:
                self._outlooks = None

    def _end(self, lease: Lease) -> None:
        del self._leases[lease.worker]
        self._dispatch()

    def _dispatch(self) -> None:
        self._outlooks = None
        self._roster = self._look()
        self._turn_away()
        self._lease()
        waiting = [job for job in self._unserved() if self._has_room(job)]
        for lease in to_be_revoked(waiting, leases=self._leases.values(), roster=self._roster):
            log.info("job %s makes room for an interactive one", lease.job.key)
            lease.revoke()
        if isinstance(self._pool, Scaling):
            self._pool.expect(self._waiting_by_environment())
        if self._waiting and self._next_look is None:
            self._next_look = self._clock.call_later(_LOOK_SECONDS, self._look_again)

    def _look_again(self) -> None:
        self._next_look = None
        self._dispatch()

    def _waiting_by_environment(self) -> Counter[str]:
        names = (self._roster.environment_names(job.requirement) for job in self._unserved())
        return Counter(each[0] for each in names if each)

    def _look(self) -> Roster:
        workers = self.workers()
        return Roster(workers, expected=self._recovery.expected(workers), absent=self._declared.absent(workers))

    def _turn_away(self) -> None:
        """Tells jobs for which there is no worker any more."""
        for job, turn in list(self._waiting.items()):
            try:
                self._roster.require(job.requirement)
            except NoMatchingWorker as error:
                del self._waiting[job]
                if not turn.done():
                    turn.set_exception(error)

    def _lease(self) -> None:
        """Gives the idle workers to those whose turn it is."""
        idle, shares = self._idle(), self._shares()
        while idle:
            takers = {
                job: worker for job in self._unserved() if (worker := self._find_worker(job, idle=idle)) is not None
            }
            if not takers:
                break
            job = min(takers, key=shares.rank)
            lease = Lease(job, worker=takers[job], since_seconds=self._clock.monotonic())
            idle.remove(lease.worker)
            shares.take(job)
            self._leases[lease.worker] = lease
            self._waiting.pop(job).set_result(lease)
        self._turns = shares.turns

    def _foresee(self, waiting: Iterable[ActiveJob]) -> dict[ActiveJob, Outlook]:
        return forecast(
            in_order(waiting, shares=self._shares()),
            roster=self._roster,
            leases=self._leases.values(),
            durations=self._durations,
            now_seconds=self._clock.monotonic(),
        )

    def _shares(self) -> Shares:
        executing = Counter(group_of(lease.job) for lease in self._leases.values())
        # Tenants come and go: those that want nothing are forgotten.
        present = {*executing, *map(group_of, self._waiting)}
        return Shares(executing=executing, turns={group: self._turns[group] for group in present & self._turns.keys()})

    def _unserved(self) -> list[ActiveJob]:
        """Jobs that wait; not those that have just been given up."""
        return [job for job, turn in self._waiting.items() if not turn.done()]

    def _idle(self) -> set[str]:
        if not self._is_open:
            return set()
        return {worker.name for worker in self._roster.workers if worker.state == WorkerState.WORKER_STATE_IDLE}

    def _with_lease(self, view: WorkerView) -> WorkerView:
        is_busy = view.name in self._leases and view.state == WorkerState.WORKER_STATE_IDLE
        return replace(view, state=WorkerState.WORKER_STATE_BUSY) if is_busy else view

    def _find_worker(self, job: ActiveJob, *, idle: set[str]) -> str | None:
        if not self._has_room(job):
            return None
        if kept := self._roster.kept_for:
            own = [name for name in idle if kept.get(name) == job.key]
            if own:
                return own[0]
            idle = idle.difference(kept)
        fitting = self._roster.fitting(job.requirement)
        others = [name for name in fitting if name not in job.lost_workers]
        return next((name for name in others or fitting if name in idle), None)

    def _has_room(self, job: ActiveJob) -> bool:
        """Returns whether the tenant of a job may have one more worker."""
        return self._slots.has_room(job, fitting=self._roster.fitting(job.requirement), leases=self._leases)
