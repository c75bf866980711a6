"""Jobs that wait for a worker."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from compilefarm.core.errors import Busy, NoMatchingWorker
from compilefarm.core.pool import WorkerPool
from compilefarm.service.clock import Clock, Timer
from compilefarm.service.matching import Roster, Wanted
from compilefarm.v1.admin_service_pb2 import WorkerState
from compilefarm.v1.environment_pb2 import Environment

# A pool does not say when a worker fails or recovers, so while jobs wait it is asked this often.
_LOOK_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ticket:
    """A job's place in the queue; it keeps it when a worker was lost and the job has to wait again.

    Attributes:
        key: key of the job.
        number: tickets are numbered as they are handed out.
        wanted: the environment that the job needs.
        losses: names of the workers that were lost on this job, one for each attempt; others are preferred.
    """

    key: str
    number: int
    wanted: Wanted
    losses: list[str] = field(default_factory=list)


# Puts waiting jobs into the order in which they get workers.
Policy = Callable[[Sequence[Ticket]], Sequence[Ticket]]


def first_come(waiting: Sequence[Ticket]) -> Sequence[Ticket]:
    """The job that came first gets the next worker."""
    return sorted(waiting, key=lambda ticket: ticket.number)


class Pace:
    """How long jobs take: a moving average, which starts from a guess."""

    _GUESS_SECONDS = 60.0
    _WEIGHT_OF_NEWEST = 0.2

    def __init__(self) -> None:
        self.job_seconds = self._GUESS_SECONDS

    def note(self, seconds: float) -> None:
        """Takes the duration of a finished job into account."""
        self.job_seconds += self._WEIGHT_OF_NEWEST * (seconds - self.job_seconds)


class Queue:
    """Hands the idle workers of a pool to the jobs that wait for them, in the order that a policy decides."""

    def __init__(self, pool: WorkerPool, *, clock: Clock, max_queued_jobs: int, policy: Policy = first_come) -> None:
        self._pool = pool
        self._clock = clock
        self._max_queued_jobs = max_queued_jobs
        self._policy = policy
        self._pace = Pace()
        self._numbers = itertools.count()
        self._waiting: dict[Ticket, asyncio.Future[str]] = {}
        self._taken: set[str] = set()
        self._roster = Roster(())
        self._next_look: Timer | None = None

    @property
    def waiting(self) -> int:
        """Jobs that wait for a worker."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Jobs that have a worker."""
        return len(self._taken)

    def enrol(self, key: str, *, environment: Environment) -> Ticket:
        """Takes a job in, and gives it a place in the order.

        Raises:
            NoMatchingWorker: no worker can do it.
            Busy: too many wait already.
        """
        self._roster = Roster(self._pool.workers())
        ticket = Ticket(key=key, number=next(self._numbers), wanted=Wanted(environment))
        self._roster.check(ticket.wanted)
        if len(self._waiting) >= self._max_queued_jobs and self._find_worker(ticket, idle=self._idle()) is None:
            raise self._busy(workers=len(self._roster.fitting(ticket.wanted)))
        return ticket

    def jobs_ahead(self, key: str) -> int:
        """Waiting jobs that come before this one and want a worker that it could have; zero once it has one."""
        order = self._policy(tuple(self._waiting))
        place = next((place for place, ticket in enumerate(order) if ticket.key == key), None)
        if place is None:
            return 0
        ours = set(self._roster.fitting(order[place].wanted))
        return sum(not ours.isdisjoint(self._roster.fitting(ticket.wanted)) for ticket in order[:place])

    @asynccontextmanager
    async def worker(self, ticket: Ticket) -> AsyncIterator[str]:
        """Waits until it is the job's turn and lends it a worker, whose name is yielded.

        Raises:
            NoMatchingWorker: the workers that could have done it are gone.
        """
        name = await self._wait(ticket)
        started_seconds = self._clock.monotonic()
        try:
            yield name
        finally:
            self._pace.note(self._clock.monotonic() - started_seconds)
            self._release(name)

    async def _wait(self, ticket: Ticket) -> str:
        turn: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = turn
        self._dispatch()
        try:
            return await turn
        except asyncio.CancelledError:
            # A worker may have been given to the job between the cancellation and this line.
            if not turn.cancelled() and turn.exception() is None:
                self._release(turn.result())
            raise
        finally:
            self._waiting.pop(ticket, None)

    def _release(self, worker: str) -> None:
        self._taken.discard(worker)
        self._dispatch()

    def _dispatch(self) -> None:
        self._roster = Roster(self._pool.workers())
        idle = self._idle()
        for ticket in self._policy(tuple(self._waiting)):
            turn = self._waiting[ticket]
            if turn.done():
                continue
            try:
                self._roster.check(ticket.wanted)
            except NoMatchingWorker as error:
                turn.set_exception(error)
                continue
            worker = self._find_worker(ticket, idle=idle) if idle else None
            if worker is not None:
                idle.remove(worker)
                self._taken.add(worker)
                turn.set_result(worker)
        self._waiting = {ticket: turn for ticket, turn in self._waiting.items() if not turn.done()}
        if self._waiting and self._next_look is None:
            self._next_look = self._clock.call_later(_LOOK_SECONDS, self._look_again)

    def _look_again(self) -> None:
        self._next_look = None
        self._dispatch()

    def _idle(self) -> set[str]:
        return {
            worker.name
            for worker in self._roster.workers
            if worker.state == WorkerState.WORKER_STATE_IDLE and worker.name not in self._taken
        }

    def _find_worker(self, ticket: Ticket, *, idle: set[str]) -> str | None:
        fitting = self._roster.fitting(ticket.wanted)
        others = [name for name in fitting if name not in ticket.losses]
        return next((name for name in others or fitting if name in idle), None)

    def _busy(self, *, workers: int) -> Busy:
        retry_after_seconds = max(1.0, self._pace.job_seconds / workers)
        wait_seconds = self._pace.job_seconds * (len(self._waiting) + 1) / workers
        return Busy(
            f"the queue is full: {len(self._waiting)} jobs wait, the estimated wait is {wait_seconds:.0f} s; "
            f"compile locally, ask again in {retry_after_seconds:.0f} s, or add workers",
            retry_after_seconds=retry_after_seconds,
        )
