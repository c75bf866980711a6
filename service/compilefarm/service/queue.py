"""Jobs that wait for a worker."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from compilefarm.core.errors import NoMatchingWorker
from compilefarm.core.pool import WorkerPool
from compilefarm.service.clock import Clock, Timer
from compilefarm.service.demand import Demand
from compilefarm.service.durations import Durations, Kind
from compilefarm.service.fairness import Group, Shares, group_of, in_order
from compilefarm.service.forecast import HAS_STARTED, Outlook, forecast
from compilefarm.service.limits import Limits
from compilefarm.service.matching import Roster, Wanted
from compilefarm.service.preemption import to_be_revoked
from compilefarm.service.recovery import Recovery
from compilefarm.service.slots import Slots
from compilefarm.service.tickets import Loan, Ticket
from compilefarm.v1.admin_service_pb2 import WorkerState
from compilefarm.v1.environment_pb2 import Environment

log = logging.getLogger(__name__)

# A pool does not say when a worker fails or recovers, so while jobs wait it is asked this often.
_LOOK_SECONDS = 1.0


class Queue:
    """Lends the idle workers of a pool to the jobs that wait for them, and takes those of preemptible jobs back when an
    interactive one finds none.

    Args:
        pool: the workers.
        clock: time.
        limits: how many jobs may wait.
        durations: what is known of how long jobs take.
        recovery: which workers that have failed are waited for.
        slots: how many workers a tenant may have at a time.
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
    ) -> None:
        self._pool = pool
        self._clock = clock
        self._limits = limits
        self._durations = durations
        self._recovery = recovery
        self._slots = slots
        self._is_open = False
        self._numbers = itertools.count()
        self._waiting: dict[Ticket, asyncio.Future[Loan]] = {}
        self._loans: dict[str, Loan] = {}
        self._turns: dict[Group, int] = {}
        self._roster = Roster(())
        self._next_look: Timer | None = None
        # As they were when the queue changed last, and when that was.
        self._outlooks: dict[Ticket, Outlook] | None = None
        self._changed_seconds = 0.0

    def open(self) -> None:
        """Begins to lend workers. Until then jobs wait."""
        self._is_open = True
        self._dispatch()

    @property
    def waiting(self) -> int:
        """Jobs that wait for a worker."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Jobs that have a worker."""
        return len(self._loans)

    def enrol(self, key: str, *, environment: Environment, demand: Demand, kind: Kind) -> Ticket:
        """Takes a job in, and gives it a place in the order.

        Raises:
            NoMatchingWorker: no worker can do it.
            Busy: too many wait already.
        """
        self._roster = self._look()
        ticket = Ticket(key=key, number=next(self._numbers), wanted=Wanted(environment), demand=demand, kind=kind)
        self._roster.check(ticket.wanted)
        if self._find_worker(ticket, idle=self._idle()) is None:
            self._limits.check(ticket, waiting=self._waiting, foresee=self._foresee)
        return ticket

    def check(self, environment: Environment) -> None:
        """Passes if some worker compiles for an environment, however busy it is.

        Raises:
            NoMatchingWorker: none does.
        """
        self._look().check(Wanted(environment))

    def outlook(self, ticket: Ticket | None) -> Outlook:
        """What a job can expect: all zero once it has a worker, and as long as it has no place in the queue."""
        if ticket is None:
            return HAS_STARTED
        if self._outlooks is None:
            self._changed_seconds = self._clock.monotonic()
            self._outlooks = self._foresee(self._waiting)
        outlook = self._outlooks.get(ticket, HAS_STARTED)
        return outlook.after(self._clock.monotonic() - self._changed_seconds)

    def reconsider(self) -> None:
        """Takes into account that the priorities of jobs have changed."""
        self._dispatch()

    @asynccontextmanager
    async def worker(self, ticket: Ticket) -> AsyncIterator[str]:
        """Waits until it is the job's turn and lends it a worker, whose name is yielded.

        Raises:
            NoMatchingWorker: the workers that could have done it are gone.
            Preempted: the worker was taken back.
        """
        loan = await self._wait(ticket)
        try:
            async with loan.used():
                yield loan.worker
        finally:
            self._end(loan)

    async def _wait(self, ticket: Ticket) -> Loan:
        turn: asyncio.Future[Loan] = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = turn
        self._dispatch()
        try:
            return await turn
        except asyncio.CancelledError:
            # A worker may have been given to the job between the cancellation and this line.
            if not turn.cancelled() and turn.exception() is None:
                self._end(turn.result())
            raise
        finally:
            if self._waiting.pop(ticket, None) is not None:
                self._outlooks = None

    def _end(self, loan: Loan) -> None:
        del self._loans[loan.worker]
        self._dispatch()

    def _dispatch(self) -> None:
        self._outlooks = None
        self._roster = self._look()
        self._turn_away()
        self._lend()
        waiting = [ticket for ticket in self._unserved() if self._has_room(ticket)]
        for loan in to_be_revoked(waiting, loans=self._loans.values(), roster=self._roster):
            log.info("job %s makes room for an interactive one", loan.ticket.key)
            loan.revoke()
        if self._waiting and self._next_look is None:
            self._next_look = self._clock.call_later(_LOOK_SECONDS, self._look_again)

    def _look_again(self) -> None:
        self._next_look = None
        self._dispatch()

    def _look(self) -> Roster:
        workers = self._pool.workers()
        return Roster(workers, expected=self._recovery.expected(workers))

    def _turn_away(self) -> None:
        """Tells jobs for which there is no worker any more."""
        for ticket, turn in list(self._waiting.items()):
            try:
                self._roster.check(ticket.wanted)
            except NoMatchingWorker as error:
                del self._waiting[ticket]
                if not turn.done():
                    turn.set_exception(error)

    def _lend(self) -> None:
        """Gives the idle workers to those whose turn it is."""
        idle, shares = self._idle(), self._shares()
        while idle:
            takers = {
                ticket: worker
                for ticket in self._unserved()
                if (worker := self._find_worker(ticket, idle=idle)) is not None
            }
            if not takers:
                break
            ticket = min(takers, key=shares.rank)
            loan = Loan(ticket, worker=takers[ticket], since_seconds=self._clock.monotonic())
            idle.remove(loan.worker)
            shares.take(ticket)
            self._loans[loan.worker] = loan
            self._waiting.pop(ticket).set_result(loan)
        self._turns = shares.turns

    def _foresee(self, waiting: Iterable[Ticket]) -> dict[Ticket, Outlook]:
        return forecast(
            in_order(waiting, shares=self._shares()),
            roster=self._roster,
            loans=self._loans.values(),
            durations=self._durations,
            now_seconds=self._clock.monotonic(),
        )

    def _shares(self) -> Shares:
        executing = Counter(group_of(loan.ticket) for loan in self._loans.values())
        # Tenants come and go: those that want nothing are forgotten.
        present = {*executing, *map(group_of, self._waiting)}
        return Shares(executing=executing, turns={group: self._turns[group] for group in present & self._turns.keys()})

    def _unserved(self) -> list[Ticket]:
        """Jobs that wait; not those that have just been given up."""
        return [ticket for ticket, turn in self._waiting.items() if not turn.done()]

    def _idle(self) -> set[str]:
        if not self._is_open:
            return set()
        return {
            worker.name
            for worker in self._roster.workers
            if worker.state == WorkerState.WORKER_STATE_IDLE and worker.name not in self._loans
        }

    def _find_worker(self, ticket: Ticket, *, idle: set[str]) -> str | None:
        if not self._has_room(ticket):
            return None
        fitting = self._roster.fitting(ticket.wanted)
        others = [name for name in fitting if name not in ticket.losses]
        return next((name for name in others or fitting if name in idle), None)

    def _has_room(self, ticket: Ticket) -> bool:
        """Whether the tenant of a job may have one more worker."""
        return self._slots.has_room(ticket, fitting=self._roster.fitting(ticket.wanted), loans=self._loans)
