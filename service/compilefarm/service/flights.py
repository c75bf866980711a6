"""Single flight: one running job per key, however many ask for it; where callers are trusted differently, one for each
namespace at most.

A flight is a task of its own, so it outlives the request that started it. Everything between the first look into the
store and the last write to it happens inside the flight. Whoever asks therefore either boards a flight whose result is
still to come, or starts one that finds in the store what the flight before has left there: no two fly for one key, and
none compiles what has just been compiled.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial

from compilefarm.core.errors import Draining, FarmError, JobCancelled
from compilefarm.service.clock import Clock, wait_at_most
from compilefarm.service.demand import Claims, Demand
from compilefarm.service.incidents import incident
from compilefarm.service.log_context import job_key
from compilefarm.service.priorities import Priority
from compilefarm.service.tickets import Ticket
from compilefarm.v1.job_pb2 import CompileFailure, Phase
from compilefarm.v1.manifest_pb2 import Manifest

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Where a job stands: its phase, the worker that has it (empty while it is queued), and since when by the clock."""

    phase: Phase.ValueType
    worker: str
    since_seconds: float


class Source(Enum):
    """Where the result of a flight came from."""

    STORE = auto()
    COMPILE = auto()
    QUARANTINE = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Landing:
    """How a flight ended.

    Attributes:
        result: what it brought.
        source: where that came from.
    """

    result: Manifest | CompileFailure
    source: Source


# Does the job of a flight.
Work = Callable[["Flight"], Awaitable[Landing]]


class Flight:
    """One job on its way.

    Attributes:
        key: key of the job.
        namespace: in which its result will lie.
        hints: for which it is compiled.
        account: on which goes what is done for it.
        claims: who waits for it.
        started_seconds: when it left, by the clock.
        ticket: its place in the queue; None before it has one.
        stages: where the job has been, in order; none while the store is being looked into.
        task: does the job.
    """

    def __init__(
        self,
        key: str,
        *,
        namespace: str,
        hints: Sequence[int],
        account: str,
        work: Work,
        claims: Claims,
        clock: Clock,
    ) -> None:
        self.key = key
        self.namespace = namespace
        self.hints = tuple(hints)
        self.account = account
        self.claims = claims
        self._clock = clock
        self.started_seconds = clock.monotonic()
        self.ticket: Ticket | None = None
        self.stages: list[Stage] = []
        self._waiters: set[asyncio.Future[bool]] = set()
        self._given_up: FarmError | None = None
        self.task = asyncio.create_task(self._fly(work), name=f"flight {key}")
        self.task.add_done_callback(self._land)

    @property
    def landed(self) -> bool:
        """Whether it is over."""
        return self.task.done()

    def landing(self) -> Landing:
        """How it ended, once it has landed.

        Raises:
            FarmError: whatever ended it before it had a result.
        """
        if self.task.cancelled():
            assert self._given_up is not None, "nothing else cancels a flight"
            raise self._given_up
        return self.task.result()

    def give_up(self, why: FarmError) -> None:
        """Ends the job before it is done. Those who watch get `why`."""
        self._given_up = why
        self.claims.close()
        self.task.cancel()

    def enter(self, phase: Phase.ValueType, worker: str = "") -> None:
        """Notes that the job enters a phase, and tells those who watch."""
        self.stages.append(Stage(phase=phase, worker=worker, since_seconds=self._clock.monotonic()))
        self._wake()

    async def changes_within(self, seconds: float) -> bool:
        """Waits for a stage or the landing. False if there is neither for that long."""
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        timer = self._clock.call_later(seconds, partial(_settle, waiter, False))
        self._waiters.add(waiter)
        try:
            return await waiter
        finally:
            timer.cancel()
            self._waiters.discard(waiter)

    async def _fly(self, work: Work) -> Landing:
        job_key.set(self.key)
        try:
            return await work(self)
        except FarmError:
            raise
        except Exception as error:
            raise incident(error, during=f"the compile of {self.key}") from error

    def _land(self, task: asyncio.Task[Landing]) -> None:
        self.claims.close()
        if not task.cancelled():
            # Those who asked may all be gone; asyncio must not complain that nobody looked at the error.
            task.exception()
        self._wake()

    def _wake(self) -> None:
        for waiter in self._waiters:
            _settle(waiter, True)


def _settle(waiter: asyncio.Future[bool], value: bool) -> None:
    if not waiter.done():
        waiter.set_result(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Boarding:
    """A request that waits for a flight.

    Attributes:
        flight: it.
        leads: whether the flight left for this request, because there was none.
        first_stage: index of the first stage that is told: the one that the job is in when the request comes.
    """

    flight: Flight
    leads: bool
    first_stage: int


class Flights:
    """The flights of this moment.

    Attributes:
        closed: whether no more flights leave.

    Args:
        clock: time.
        progress_seconds: longest silence towards those who watch.
        orphan_seconds: how long a job goes on after the last one who waited for it went away.
        on_change: called when the priority of a job has changed.
        on_landed: called with every flight that is over.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        progress_seconds: float,
        orphan_seconds: float,
        on_change: Callable[[], None],
        on_landed: Callable[[Flight], None],
    ) -> None:
        self._clock = clock
        self._progress_seconds = progress_seconds
        self._orphan_seconds = orphan_seconds
        self._on_change = on_change
        self._on_landed = on_landed
        # By namespace and key. One that was given up takes nobody on board; it has landed when its worker is free.
        self._boarding: dict[tuple[str, str], Flight] = {}
        self._flying: set[Flight] = set()
        self.closed = False

    @contextmanager
    def board(
        self,
        key: str,
        *,
        namespaces: Sequence[str],
        work: Work,
        tenant: str,
        priority: Priority,
        hints: Sequence[int] = (),
        account: str = "",
    ) -> Iterator[Boarding]:
        """Waits for the job of a key for as long as the context lasts. A job for which nobody waits any more is given
        up after a while, unless it is a prewarm.

        Args:
            key: of the job.
            namespaces: in one of these its result has to lie; in the first one, if the job begins with this request.
            work: does the job; left alone if it is being done already.
            tenant: for whom the job is done, if it begins with this request.
            priority: how urgent it is to the one who waits.
            hints: for which it is compiled, if it begins with this request.
            account: on which goes what is done for it, if it begins with this request.

        Raises:
            Draining: no flights leave any more.
        """
        self.check_open()
        flight = self._find(key, namespaces=namespaces)
        leads = flight is None
        if flight is None:
            demand = Demand(tenant=tenant, priority=priority)
            flight = self._depart(key, namespace=namespaces[0], hints=hints, account=account, work=work, demand=demand)
        with flight.claims.hold(priority):
            yield Boarding(flight=flight, leads=leads, first_stage=max(len(flight.stages) - 1, 0))

    async def watch(self, boarding: Boarding) -> AsyncGenerator[Stage, None]:
        """Yields where the job stands and every stage it enters, the last one again after a while without news."""
        flight, seen = boarding.flight, boarding.first_stage
        while True:
            while seen < len(flight.stages):
                seen += 1
                yield flight.stages[seen - 1]
            if flight.landed:
                return
            changed = await flight.changes_within(self._progress_seconds)
            if not changed and flight.stages:
                yield flight.stages[-1]

    def check_open(self) -> None:
        """Passes while flights may leave.

        Raises:
            Draining: the service is going down.
        """
        if self.closed:
            raise Draining("the service is going down and takes no more requests; ask again when it is back")

    def is_working(self, key: str, *, namespaces: Sequence[str]) -> bool:
        """Whether the job of a key waits or is being done, and its result will lie in one of some namespaces."""
        flight = self._find(key, namespaces=namespaces)
        return flight is not None and bool(flight.stages) and not flight.landed

    def working(self) -> list[Flight]:
        """Those whose job waits or is being done, in the order in which they left."""
        return [flight for flight in self._boarding.values() if flight.stages and not flight.landed]

    def end(self, key: str, *, why: FarmError) -> None:
        """Ends the flights of a key. Those who watch get `why`; who comes from now on gets a flight of his own."""
        for place, flight in list(self._boarding.items()):
            if flight.key == key:
                del self._boarding[place]
                flight.give_up(why)

    async def drain(self) -> AsyncGenerator[int, None]:
        """Lets no more flights leave. Yields how many have not landed, at once and whenever one has, until none is
        left. Closing the iterator does not end the drain.
        """
        if not self.closed:
            log.info("draining: no more jobs are taken; left are %d", len(self._flying))
        self.closed = True
        while True:
            yield len(self._flying)
            if not self._flying:
                return
            await asyncio.wait([flight.task for flight in self._flying], return_when=asyncio.FIRST_COMPLETED)

    async def close(self, *, grace_seconds: float) -> None:
        """Lets no more flights leave, and ends those that are not over after the grace time."""
        self.closed = True
        flights = list(self._flying)
        log.info("going down: jobs left are %d, and get %.0f s to end", len(flights), grace_seconds)
        tasks = [flight.task for flight in flights]
        await wait_at_most(grace_seconds, tasks, clock=self._clock)
        for flight in flights:
            flight.give_up(Draining("the service is going down and gave up this job; ask again when it is back"))
        await asyncio.gather(*tasks, return_exceptions=True)

    def _find(self, key: str, *, namespaces: Sequence[str]) -> Flight | None:
        flights = (self._boarding.get((namespace, key)) for namespace in namespaces)
        return next((flight for flight in flights if flight is not None and not flight.landed), None)

    def _depart(
        self, key: str, *, namespace: str, hints: Sequence[int], account: str, work: Work, demand: Demand
    ) -> Flight:
        claims = Claims(
            demand,
            clock=self._clock,
            grace_seconds=self._orphan_seconds,
            on_change=self._on_change,
            on_abandoned=lambda: self._abandon(flight),
        )
        flight = Flight(
            key, namespace=namespace, hints=hints, account=account, work=work, claims=claims, clock=self._clock
        )
        self._boarding[namespace, key] = flight
        self._flying.add(flight)
        flight.task.add_done_callback(lambda _: self._forget(flight))
        return flight

    def _abandon(self, flight: Flight) -> None:
        log.info("job %s: given up, since nobody waits for it any more", flight.key)
        del self._boarding[flight.namespace, flight.key]
        flight.give_up(JobCancelled("nobody waited for this job any more"))

    def _forget(self, flight: Flight) -> None:
        self._flying.discard(flight)
        place = flight.namespace, flight.key
        if self._boarding.get(place) is flight:
            del self._boarding[place]
        self._on_landed(flight)
