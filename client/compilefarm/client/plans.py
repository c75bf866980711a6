"""Plans of prewarming: which requests of a recording a farm has, would compile, and cannot serve."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from compilefarm.client.package_plans import PlannedPackage
from compilefarm.core.environments import differences
from compilefarm.core.recorded_packages import Unpublished
from compilefarm.core.recordings import RecordedBypass
from compilefarm.core.requests import Request
from compilefarm.v1.admin_service_pb2 import WORKER_STATE_FAILED, Worker

Standing = Literal["hit", "miss", "under way", "cannot"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedGraph:
    """A request of a recording, and what the farm would do about it.

    Attributes:
        file: of the request, below the folder of the recording.
        name: what torch.compile(name=) called the graph.
        nodes: of the graph.
        count: how often it was asked for.
        request: what is asked of the farm; as it was recorded where it cannot be served.
        key: its key; empty where there is none.
        standing: "hit" (it is stored), "miss" (it would be compiled), "under way" (it is being compiled), or "cannot"
            (it cannot be served).
        reason: why it cannot be served, as a word for machines; empty where it can.
        problem: the same for people; of a miss, what its compile would wait for that is not there.
        compile_seconds: what the compile of the stored artifact took, or a compile probably takes; zero where it cannot
            be served.
    """

    file: str
    name: str
    nodes: int
    count: int
    request: Request
    key: str = ""
    standing: Standing
    reason: str = ""
    problem: str = ""
    compile_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What prewarming would do.

    Attributes:
        graphs: the requests, in the order of the recording.
        bypasses: graphs that pods do not ask a farm for.
        workers: of the farm.
        packages: of Dynamo, that the recording holds.
        unpublished: functions that pods trace, since they have none.
    """

    graphs: Sequence[PlannedGraph]
    bypasses: Sequence[RecordedBypass] = ()
    workers: Sequence[Worker] = field(default_factory=tuple)
    packages: Sequence[PlannedPackage] = ()
    unpublished: Sequence[Unpublished] = ()

    def standing(self, *standings: Standing) -> list[PlannedGraph]:
        """Returns the graphs of some standings."""
        return [graph for graph in self.graphs if graph.standing in standings]

    def missing(self) -> list[PlannedGraph]:
        """Returns the graphs that are to be compiled, those first that probably take longest: one that is begun last
        has one worker busy and all others idle (Graham, Bounds on Multiprocessing Timing Anomalies, 1969)."""
        found = self.standing("miss", "under way")
        return sorted(found, key=lambda graph: (graph.compile_seconds, graph.nodes), reverse=True)

    def estimated_seconds(self) -> float:
        """Returns the seconds until all that is missing is compiled, if nobody else wants the workers."""
        return estimate_seconds(self.missing(), workers=self.workers)

    def worker_seconds(self) -> float:
        """Returns the seconds that workers together will spend on what is missing."""
        return sum(graph.compile_seconds for graph in _distinct(self.missing()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How much of a recording is stored.

    Attributes:
        graphs: of the recording, bypasses among them.
        stored: of these.
        saved_seconds: of compiling that pods will not do, each time that the workload runs.
        unsaved_seconds: of compiling that they will probably do.
    """

    graphs: int
    stored: int
    saved_seconds: float
    unsaved_seconds: float

    @property
    def percent(self) -> float:
        """The share of the graphs that is stored; 100 if there are none."""
        return 100.0 * self.stored / self.graphs if self.graphs else 100.0


def coverage_of(plan: Plan) -> Coverage:
    """Returns how much of a recording is stored."""
    stored = plan.standing("hit")
    others = plan.standing("miss", "under way", "cannot")
    return Coverage(
        graphs=len(plan.graphs) + len(plan.bypasses),
        stored=len(stored),
        saved_seconds=sum(graph.compile_seconds * graph.count for graph in stored),
        unsaved_seconds=sum(graph.compile_seconds * graph.count for graph in others),
    )


def package_percent(plan: Plan) -> float:
    """Returns the share of functions whose packages are stored; 100 if none was recorded. What is left out does not
    count."""
    asked = sum(each.standing != "left out" for each in plan.packages) + len(plan.unpublished)
    stored = sum(each.standing == "stored" for each in plan.packages)
    return 100.0 * stored / asked if asked else 100.0


def covers(plan: Plan, threshold_percent: float) -> bool:
    """Returns whether at least that share of the graphs is stored, and of the packages."""
    return min(coverage_of(plan).percent, package_percent(plan)) >= threshold_percent


def estimate_seconds(graphs: Iterable[PlannedGraph], *, workers: Sequence[Worker]) -> float:
    """Returns the seconds that workers take for graphs in this order; the worker that is free first has the next."""
    free = {worker.name: 0.0 for worker in workers if worker.state != WORKER_STATE_FAILED}
    fitting: dict[bytes, list[str]] = {}
    for graph in _distinct(graphs):
        environment = graph.request.job.environment
        content = environment.SerializeToString(deterministic=True)
        if content not in fitting:
            fitting[content] = [
                worker.name
                for worker in workers
                if worker.name in free and not differences(wanted=environment, offered=worker.environment)
            ]
        first = min(fitting[content], key=free.__getitem__, default=None)
        if first is not None:
            free[first] += graph.compile_seconds
    return max(free.values(), default=0.0)


def _distinct(graphs: Iterable[PlannedGraph]) -> Iterator[PlannedGraph]:
    """Yields each graph once: what was recorded for two environments may be the same graph in a third."""
    seen: set[bytes] = set()
    for graph in graphs:
        content = graph.request.job.SerializeToString(deterministic=True)
        if content not in seen:
            seen.add(content)
            yield graph
