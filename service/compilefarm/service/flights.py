"""Single flight: one running job per key, however many ask for it.

A flight is a task of its own, so it outlives the request that started it. Everything between the first look into the
store and the last write to it happens inside the flight. Whoever asks therefore either boards a flight whose result is
still to come, or starts one that finds in the store what the flight before has left there: no two fly for one key, and
none compiles what has just been compiled.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from compilefarm.core.errors import Draining, FarmError
from compilefarm.service.clock import Clock, wait_at_most
from compilefarm.service.incidents import incident
from compilefarm.v1.job_pb2 import CompileFailure, Phase
from compilefarm.v1.manifest_pb2 import Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Where a job stands: its phase, and the worker that has it (empty while it is queued)."""

    phase: Phase.ValueType
    worker: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Landing:
    """How a flight ended.

    Attributes:
        result: what it brought.
        from_store: nothing had to be compiled.
    """

    result: Manifest | CompileFailure
    from_store: bool


# Does the job of a flight.
Work = Callable[["Flight"], Awaitable[Landing]]


class Flight:
    """One job on its way.

    Attributes:
        key: key of the job.
        started_seconds: when it left, by the clock.
        stages: where the job has been, in order; none while the store is being looked into.
        task: does the job; cancelling it gives the job up.
    """

    def __init__(self, key: str, *, work: Work, started_seconds: float) -> None:
        self.key = key
        self.started_seconds = started_seconds
        self.stages: list[Stage] = []
        self._waiters: set[asyncio.Future[bool]] = set()
        self.task = asyncio.create_task(self._fly(work), name=f"flight {key}")
        self.task.add_done_callback(self._land)

    @property
    def landed(self) -> bool:
        """Whether it is over."""
        return self.task.done()

    def landing(self) -> Landing:
        """How it ended, once it has landed.

        Raises:
            Draining: the service went down before the job was done.
            FarmError: whatever else ended it.
        """
        if self.task.cancelled():
            raise Draining("the service is going down and gave up this job; ask again when it is back")
        return self.task.result()

    def enter(self, phase: Phase.ValueType, worker: str = "") -> None:
        """Notes that the job enters a phase, and tells those who watch."""
        self.stages.append(Stage(phase=phase, worker=worker))
        self._wake()

    async def changes_within(self, seconds: float, *, clock: Clock) -> bool:
        """Waits for a stage or the landing. False if there is neither for that long."""
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        timer = clock.call_later(seconds, partial(_settle, waiter, False))
        self._waiters.add(waiter)
        try:
            return await waiter
        finally:
            timer.cancel()
            self._waiters.discard(waiter)

    async def _fly(self, work: Work) -> Landing:
        try:
            return await work(self)
        except FarmError:
            raise
        except Exception as error:
            raise incident(error, during=f"the compile of {self.key}") from error

    def _land(self, task: asyncio.Task[Landing]) -> None:
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


class Flights:
    """The flights of this moment."""

    def __init__(self, *, clock: Clock, progress_seconds: float) -> None:
        self._clock = clock
        self._progress_seconds = progress_seconds
        self._flying: dict[str, Flight] = {}
        self._closed = False

    def board(self, key: str, *, work: Work) -> tuple[Flight, bool]:
        """The flight of a key, and whether it left with this call, to do `work`, because there was none.

        Raises:
            Draining: no flights leave any more.
        """
        self.check_open()
        flight = self._flying.get(key)
        if flight is not None:
            return flight, False
        flight = Flight(key, work=work, started_seconds=self._clock.monotonic())
        self._flying[key] = flight
        flight.task.add_done_callback(lambda _: self._flying.pop(key))
        return flight, True

    async def watch(self, flight: Flight) -> AsyncGenerator[Stage, None]:
        """Yields where the job stands and every stage it enters, the last one again after a while without news."""
        seen = max(len(flight.stages) - 1, 0)
        while True:
            while seen < len(flight.stages):
                seen += 1
                yield flight.stages[seen - 1]
            if flight.landed:
                return
            changed = await flight.changes_within(self._progress_seconds, clock=self._clock)
            if not changed and flight.stages:
                yield flight.stages[-1]

    def check_open(self) -> None:
        """Passes while flights may leave.

        Raises:
            Draining: the service is going down.
        """
        if self._closed:
            raise Draining("the service is going down and takes no more requests; ask again when it is back")

    async def close(self, *, grace_seconds: float) -> None:
        """Lets no more flights leave, and ends those that are not over after the grace time."""
        self._closed = True
        tasks = [flight.task for flight in self._flying.values()]
        await wait_at_most(grace_seconds, tasks, clock=self._clock)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
