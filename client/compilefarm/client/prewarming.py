"""Has a farm compile what a plan says is missing, and says how it goes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace

import grpc

from compilefarm.client.blobs import send_missing
from compilefarm.client.clock import Budget, Clock, SystemClock
from compilefarm.client.connection import Connection
from compilefarm.client.plans import Plan, PlannedGraph
from compilefarm.client.silence import Silence
from compilefarm.core.enum_words import word_of
from compilefarm.core.errors import (
    Busy,
    Draining,
    FarmError,
    InternalError,
    JobCancelled,
    MissingBlobs,
    NotAllowed,
    Silent,
    StoreUnavailable,
    Unreachable,
    WorkerLost,
)
from compilefarm.core.keys import FORMATS
from compilefarm.core.metadata import TENANT_KEY, say_key_formats
from compilefarm.v1 import compile_service_pb2 as wire
from compilefarm.v1.job_pb2 import FailureKind

DEFAULT_PARALLEL = 16
# A farm that is started anew takes seconds; one that is gone for longer is gone.
_SECONDS_BEFORE_ASKING_AGAIN = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
_WORTH_ASKING_AGAIN = (Draining, MissingBlobs, StoreUnavailable, Unreachable, WorkerLost)
_LEAST_SECONDS_WHEN_BUSY = 0.5
_SECONDS_TO_SEND_TENSORS = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A graph after prewarming.

    Attributes:
        graph: it.
        outcome: "hit" (it was stored), "compiled", "joined" (it was being compiled already), or "failed".
        reason: why it failed, as a word for machines; empty if it did not.
        problem: the same for people.
    """

    graph: PlannedGraph
    outcome: str
    reason: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What prewarming came to.

    Attributes:
        plan: what was to be done.
        served: what became of each graph, in the order in which it was known: stored ones first.
        seconds: that it took.
    """

    plan: Plan
    served: Sequence[Served] = field(default_factory=tuple)
    seconds: float = 0.0

    @property
    def failed(self) -> list[Served]:
        """Graphs without an artifact."""
        return [each for each in self.served if each.outcome == "failed"]

    @property
    def unfinished(self) -> int:
        """Graphs of which it is not known yet."""
        return len(self.plan.graphs) - len(self.served)

    def count(self, outcome: str) -> int:
        """Graphs of one outcome."""
        return sum(each.outcome == outcome for each in self.served)


OnServed = Callable[[Report], None]


class Prewarming:
    """Asks for the graphs of a plan, so many at a time, behind everybody who waits for a compile.

    What the farm has compiled stays, however this ends; the next plan finds it stored.

    Args:
        connection: to the farm.
        tenant: for whom it is done; empty if that is not said.
        parallel: requests at a time. The farm compiles as many at a time as it has workers.
        clock: time.
        pause: lets seconds pass, fewer when prewarming is ended.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        tenant: str = "",
        parallel: int = DEFAULT_PARALLEL,
        clock: Clock | None = None,
        pause: Callable[[float], object] | None = None,
    ) -> None:
        self._connection = connection
        self._metadata = (say_key_formats(FORMATS), *([(TENANT_KEY, tenant)] if tenant else ()))
        self._parallel = parallel
        self._clock = clock or SystemClock()
        self._stopped = threading.Event()
        self._pause = pause or self._stopped.wait
        self._lock = threading.Lock()
        self._calls: set[grpc.Call] = set()

    def run(self, plan: Plan, *, on_served: OnServed = lambda _: None) -> Report:
        """Has everything compiled that is missing, and returns what became of it.

        Args:
            plan: what is missing.
            on_served: called in this thread whenever more is known, and at the beginning.

        Raises:
            NotAllowed: the farm refuses this caller.
        """
        started = self._clock.now()
        served = [Served(graph=graph, outcome="hit") for graph in plan.standing("hit")]
        for graph in plan.standing("cannot"):
            served.append(Served(graph=graph, outcome="failed", reason=graph.reason, problem=graph.problem))
        report = Report(plan=plan, served=tuple(served))
        on_served(report)
        with ThreadPoolExecutor(self._parallel, thread_name_prefix="prewarm") as threads:
            asked = [threads.submit(self._serve, graph) for graph in plan.standing("miss", "under way")]
            try:
                for done in as_completed(asked):
                    seconds = self._clock.now() - started
                    report = replace(report, served=(*report.served, done.result()), seconds=seconds)
                    on_served(report)
            finally:
                # At a Ctrl-C, or when the caller is refused: threads would wait for compiles that nobody waits for.
                for future in asked:
                    future.cancel()
                self._stop()
        return report

    def _stop(self) -> None:
        self._stopped.set()
        with self._lock:
            for call in self._calls:
                call.cancel()

    def _serve(self, graph: PlannedGraph) -> Served:
        delays = list(_SECONDS_BEFORE_ASKING_AGAIN)
        while True:
            started = self._clock.now()
            try:
                return self._ask(graph)
            except NotAllowed:
                raise
            except Busy as error:
                # A full queue means waiting: whoever prewarms is in no hurry.
                delay = max(error.retry_after_seconds, _LEAST_SECONDS_WHEN_BUSY)
            except Silent as error:
                # It would be silent again, and to the other graphs too.
                self._connection.give_up(error)
                return _failed(graph, error.reason, str(error))
            except _WORTH_ASKING_AGAIN as error:
                if self._clock.now() - started > _SECONDS_BEFORE_ASKING_AGAIN[-1]:
                    # It was there for a while: this is another outage.
                    delays = list(_SECONDS_BEFORE_ASKING_AGAIN)
                if not delays or self._stopped.is_set():
                    return _failed(graph, error.reason, str(error))
                delay = delays.pop(0)
            except FarmError as error:
                return _failed(graph, error.reason, str(error))
            if self._stopped.is_set():
                return _failed(graph, JobCancelled.reason, "prewarming was ended")
            self._pause(delay)

    def _ask(self, graph: PlannedGraph) -> Served:
        """Asks; sends the tensors that the farm says it misses, which it takes from nobody else, and asks again."""
        try:
            return self._ask_once(graph)
        except MissingBlobs:
            if not graph.request.blobs:
                raise
        budget = Budget(_SECONDS_TO_SEND_TENSORS, clock=self._clock)
        send_missing(graph.request.blobs, connection=self._connection, budget=budget)
        return self._ask_once(graph)

    def _ask_once(self, graph: PlannedGraph) -> Served:
        line = self._connection.line()
        request = wire.CompileRequest(job=graph.request.job, priority=wire.PRIORITY_PREWARM)
        with self._connection.calls():
            call = line.compiles.Compile(request, metadata=self._metadata)
            self._follow(call)
            silence = Silence()
            try:
                with silence.watching(call):
                    for response in silence.broken_by(call):
                        if response.HasField("finished"):
                            return _served(graph, response.finished)
            finally:
                with self._lock:
                    self._calls.discard(call)
        raise InternalError("the farm ended the talk without an answer")

    def _follow(self, call: grpc.Call) -> None:
        with self._lock:
            self._calls.add(call)
        if self._stopped.is_set():
            call.cancel()


def _served(graph: PlannedGraph, finished: wire.Finished) -> Served:
    if finished.HasField("failure"):
        failure = finished.failure
        reason = word_of(FailureKind, failure.kind, prefix="FAILURE_KIND_")
        return _failed(graph, reason, ": ".join(filter(None, (failure.error_type, failure.message))))
    outcome = word_of(wire.Outcome, finished.outcome, prefix="OUTCOME_")
    return Served(graph=graph, outcome=outcome)


def _failed(graph: PlannedGraph, reason: str, problem: str) -> Served:
    return Served(graph=graph, outcome="failed", reason=reason, problem=problem)
