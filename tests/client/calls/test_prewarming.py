"""Asking for the graphs of a plan, against a farm that is busy, goes away, or refuses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from compilefarm.client.config import ClientConfig
from compilefarm.client.connection import Connection
from compilefarm.client.plans import Plan, PlannedGraph, coverage_of, estimate_seconds
from compilefarm.client.prewarming import Prewarming, Report
from compilefarm.client.testing import FakeClock, FarmServicer, serving
from compilefarm.core.errors import Busy, Draining, FarmError, InvalidRequest, NotAllowed, WorkerLost
from compilefarm.core.keys import key_of
from compilefarm.core.metadata import TENANT_KEY
from compilefarm.core.recordings import RecordedBypass
from compilefarm.core.requests import Request
from compilefarm.service.testing.jobs import ENVIRONMENT, sample_job
from compilefarm.v1.admin_service_pb2 import WORKER_STATE_FAILED, WORKER_STATE_IDLE, Worker
from compilefarm.v1.environment_pb2 import Environment

OLDER = Environment(torch="2.11.0+cpu", torch_build="fedcba", python_abi=ENVIRONMENT.python_abi, cpu=ENVIRONMENT.cpu)


class RefusingFarm(FarmServicer):
    """A farm that refuses for a while.

    Attributes:
        refusals: what it says to the next compiles.
    """

    def __init__(self) -> None:
        super().__init__()
        self.refusals: list[FarmError] = []
        self.before_compile = self._refuse

    def _refuse(self) -> None:
        if self.refusals:
            raise self.refusals.pop(0)


def graph(target: str = "torch.relu", *, environment: Environment = ENVIRONMENT, seconds: float = 10.0) -> PlannedGraph:
    request = Request(job=sample_job(target, environment=environment))
    return PlannedGraph(
        file=f"requests/{target}.cfreq",
        name="",
        nodes=3,
        count=2,
        request=request,
        key=key_of(request.job).text,
        standing="miss",
        compile_seconds=seconds,
    )


@pytest.fixture
def farm() -> RefusingFarm:
    return RefusingFarm()


@pytest.fixture
def connection(farm: RefusingFarm) -> Iterator[Connection]:
    with serving(farm) as address:
        connection = Connection(ClientConfig(address=address), clock=FakeClock())
        yield connection
        connection.close()


def prewarm(connection: Connection, *graphs: PlannedGraph, tenant: str = "") -> tuple[Report, list[float]]:
    """What becomes of graphs that are missing, and what was waited for."""
    pauses: list[float] = []
    prewarming = Prewarming(connection, tenant=tenant, parallel=1, clock=FakeClock(), pause=pauses.append)
    return prewarming.run(Plan(graphs=graphs)), pauses


def outcomes(report: Report) -> list[tuple[str, str]]:
    return [(each.outcome, each.reason) for each in report.served]


def test_a_full_queue_is_waited_for_as_long_as_it_takes(farm: RefusingFarm, connection: Connection) -> None:
    farm.refusals = [Busy("the queue is full", retry_after_seconds=3.0) for _ in range(40)]
    report, pauses = prewarm(connection, graph(), tenant="release")
    assert outcomes(report) == [("compiled", "")]
    assert len(pauses) == 40
    assert farm.metadata[TENANT_KEY] == "release"


@pytest.mark.parametrize("error", [Draining("going down"), WorkerLost("workers were lost on this job")])
def test_a_farm_that_is_started_anew_is_asked_again(
    farm: RefusingFarm, connection: Connection, error: FarmError
) -> None:
    farm.refusals = [error, error]
    report, pauses = prewarm(connection, graph())
    assert outcomes(report) == [("compiled", "")]
    assert pauses == [1.0, 2.0]


def test_a_farm_that_stays_away_is_a_failure_of_each_graph(farm: RefusingFarm, connection: Connection) -> None:
    farm.refusals = [Draining("going down")] * 7
    report, pauses = prewarm(connection, graph("torch.relu"), graph("torch.sin"))
    assert outcomes(report) == [("failed", "draining"), ("compiled", "")]
    assert sum(pauses) == 60.0
    assert report.failed[0].problem == "going down"


def test_what_the_farm_finds_malformed_is_not_asked_for_again(farm: RefusingFarm, connection: Connection) -> None:
    farm.refusals = [InvalidRequest("node 1: it does nothing")]
    report, pauses = prewarm(connection, graph())
    assert (outcomes(report), pauses) == ([("failed", "invalid_request")], [])


def test_a_caller_who_is_refused_is_told_at_once(farm: RefusingFarm, connection: Connection) -> None:
    farm.refusals = [NotAllowed("prewarming needs the role prewarm")]
    with pytest.raises(NotAllowed, match="needs the role prewarm"):
        prewarm(connection, graph("torch.relu"), graph("torch.sin"), graph("torch.cos"))


def test_an_interrupt_while_graphs_are_still_handed_out_ends_those_under_way(
    farm: RefusingFarm, connection: Connection
) -> None:
    class HandedOut(list[PlannedGraph]):
        """Graphs of a plan whose caller presses Ctrl-C when the first is with the farm and the others are not."""

        def __iter__(self) -> Iterator[PlannedGraph]:
            yield self[0]
            assert farm.held.wait(60)
            raise KeyboardInterrupt

    class InterruptedPlan(Plan):
        def missing(self) -> list[PlannedGraph]:
            return HandedOut(self.graphs)

    farm.before_compile = farm.hold
    # While the farm still compiles: nobody waits for that.
    with pytest.raises(KeyboardInterrupt):
        Prewarming(connection, parallel=1).run(InterruptedPlan(graphs=[graph(), graph("torch.cos")]))


def workers(*environments: Environment) -> Sequence[Worker]:
    return [
        Worker(name=f"worker-{number}", state=WORKER_STATE_IDLE, environment=each)
        for number, each in enumerate(environments)
    ]


def test_the_time_left_is_that_of_the_workers_that_fit() -> None:
    newer, older = graph("torch.relu"), graph("torch.relu", environment=OLDER, seconds=25.0)
    others = [graph(f"torch.graph_{number}") for number in range(3)]
    assert estimate_seconds([newer, *others], workers=workers(ENVIRONMENT)) == 40.0
    assert estimate_seconds([newer, *others], workers=workers(ENVIRONMENT, ENVIRONMENT)) == 20.0
    assert estimate_seconds([newer, older], workers=workers(ENVIRONMENT, OLDER)) == 25.0
    # What two recordings have in common is compiled once.
    assert estimate_seconds([newer, newer], workers=workers(ENVIRONMENT)) == 10.0
    lost = Worker(name="lost", state=WORKER_STATE_FAILED, environment=ENVIRONMENT)
    assert estimate_seconds([newer, *others], workers=[*workers(ENVIRONMENT), lost]) == 40.0


def test_what_takes_longest_is_asked_for_first(connection: Connection) -> None:
    """Asked for last it would have one worker busy, and all others idle."""
    small = [graph(f"torch.graph_{number}", seconds=5.0) for number in range(3)]
    graphs = [*small, replace(graph("torch.relu", seconds=5.0), nodes=9), graph("torch.sin", seconds=15.0)]
    report, _ = prewarm(connection, *graphs)
    assert [each.graph.file for each in report.served[:2]] == ["requests/torch.sin.cfreq", "requests/torch.relu.cfreq"]
    plan = Plan(graphs=[*small, graphs[-1]], workers=workers(ENVIRONMENT, ENVIRONMENT))
    assert plan.estimated_seconds() == 15.0
    assert estimate_seconds(plan.graphs, workers=plan.workers) == 20.0


def test_coverage_counts_graphs_that_never_come_to_a_farm() -> None:
    stored, missing = graph("torch.relu"), graph("torch.sin", seconds=7.0)
    bypass = RecordedBypass(reason="several_devices", message="cuda:0 and cuda:1")
    coverage = coverage_of(Plan(graphs=[replace(stored, standing="hit"), missing], bypasses=[bypass, bypass]))
    assert (coverage.graphs, coverage.stored, coverage.percent) == (4, 1, 25.0)
    assert (coverage.saved_seconds, coverage.unsaved_seconds) == (20.0, 14.0)
    assert coverage_of(Plan(graphs=[])).percent == 100.0
