"""Has a farm compile what a plan says is missing, and reports what came of it."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from compilefarm.client.clock import Budget, Clock, SystemClock
from compilefarm.client.compile_call import CompileCall, metadata_of
from compilefarm.client.connection import Connection
from compilefarm.client.defaults import DEFAULT_PARALLEL
from compilefarm.client.package_plans import PackagePlanner, PlannedPackage
from compilefarm.client.plans import Plan, PlannedGraph
from compilefarm.client.retries import UNHURRIED, Retries
from compilefarm.client.silence import Cancellable
from compilefarm.core.enum_words import word_of
from compilefarm.core.errors import FarmError, JobCancelled, NotAllowed, Silent
from compilefarm.v1 import compile_service_pb2 as wire
from compilefarm.v1.job_pb2 import FailureKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A graph after prewarming.

    Attributes:
        graph: the planned graph.
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
    """What became of the graphs of a plan.

    Attributes:
        plan: the plan.
        served: what became of each graph, stored graphs first, then in the order in which they were done.
        seconds: duration so far.
        packages: what became of the packages of the plan; none before all graphs are done.
    """

    plan: Plan
    served: Sequence[Served] = field(default_factory=tuple)
    seconds: float = 0.0
    packages: Sequence[PlannedPackage] = ()

    @property
    def failed(self) -> list[Served]:
        """Graphs without an artifact."""
        return [each for each in self.served if each.outcome == "failed"]

    @property
    def failed_packages(self) -> list[PlannedPackage]:
        """Packages that the farm does not keep."""
        return [each for each in self.packages if each.standing == "cannot"]

    @property
    def unfinished(self) -> int:
        """Number of graphs that are not done yet."""
        return len(self.plan.graphs) - len(self.served)

    def count(self, outcome: str) -> int:
        """Returns the number of graphs of one outcome."""
        return sum(each.outcome == outcome for each in self.served)


OnServed = Callable[[Report], None]


class Prewarming:
    """Asks for the graphs of a plan, several at a time, with less priority than processes that wait.

    What the farm has compiled stays, however this ends; the next plan finds it stored.

    Args:
        connection: to the farm.
        tenant: for whom it is done; may be empty.
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
        self._tenant = tenant
        self._parallel = parallel
        self._clock = clock or SystemClock()
        self._stopped = threading.Event()
        self._pause = pause or self._stopped.wait
        self._calls = _Calls()

    def run(self, plan: Plan, *, on_served: OnServed = lambda _: None) -> Report:
        """Has everything compiled that is missing, then packages kept, and returns what became of it.

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
            try:
                asked = [threads.submit(self._serve, graph) for graph in plan.missing()]
                for done in as_completed(asked):
                    seconds = self._clock.now() - started
                    report = replace(report, served=(*report.served, done.result()), seconds=seconds)
                    on_served(report)
            finally:
                # At a Ctrl-C, or when the caller is refused: threads would wait for compiles that nobody waits for.
                self._stop()
                threads.shutdown(wait=False, cancel_futures=True)
        # Who finds one asks for the artifacts of its graphs.
        return replace(report, packages=PackagePlanner(self._connection).publish(plan.packages))

    def _stop(self) -> None:
        self._stopped.set()
        self._calls.end()

    def _serve(self, graph: PlannedGraph) -> Served:
        retries = Retries(UNHURRIED, budget=Budget(math.inf, clock=self._clock), wait=self._wait)
        try:
            return retries.ask(lambda: self._ask(graph))
        except NotAllowed:
            raise
        except FarmError as error:
            if isinstance(error, Silent):
                # It would be silent to the other graphs, too.
                self._connection.give_up(error)
            return _failed(graph, error.reason, str(error))

    def _wait(self, seconds: float) -> None:
        if self._stopped.is_set():
            raise JobCancelled("prewarming was ended")
        self._pause(seconds)

    def _ask(self, graph: PlannedGraph) -> Served:
        call = CompileCall(
            wire.CompileRequest(job=graph.request.job, priority=wire.PRIORITY_PREWARM),
            blobs=graph.request.blobs,
            connection=self._connection,
            metadata=metadata_of(tenant=self._tenant),
            budget=Budget(math.inf, clock=self._clock),
            observer=self._calls,
        )
        return _served(graph, call.finish())


class _Calls:
    """The calls that are under way, which can be ended together. It is their `CallObserver`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: set[Cancellable] = set()
        self._is_ended = False

    def end(self) -> None:
        """Ends all calls, and those that begin later."""
        with self._lock:
            self._is_ended = True
            for call in self._under_way:
                call.cancel()

    @contextmanager
    def during(self, call: Cancellable) -> Iterator[None]:
        """Ends the call with the others."""
        with self._lock:
            self._under_way.add(call)
            if self._is_ended:
                call.cancel()
        try:
            yield
        finally:
            with self._lock:
                self._under_way.discard(call)

    def sent(self, size_bytes: int) -> None:
        """Nobody counts them."""

    def accepted(self, key: str) -> None:
        """The plan has the key."""

    def progressed(self, progress: wire.Progress) -> None:
        """Nobody watches one graph among many."""


def _served(graph: PlannedGraph, finished: wire.Finished) -> Served:
    if finished.HasField("failure"):
        failure = finished.failure
        reason = word_of(FailureKind, failure.kind, prefix="FAILURE_KIND_")
        return _failed(graph, reason, ": ".join(filter(None, (failure.error_type, failure.message))))
    outcome = word_of(wire.Outcome, finished.outcome, prefix="OUTCOME_")
    return Served(graph=graph, outcome=outcome)


def _failed(graph: PlannedGraph, reason: str, problem: str) -> Served:
    return Served(graph=graph, outcome="failed", reason=reason, problem=problem)
