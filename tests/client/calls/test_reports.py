"""What the farm is told of graphs."""

from __future__ import annotations

from typing import Any

import pytest

from compilefarm.client.clock import SystemClock
from compilefarm.client.dependencies import Dependencies
from compilefarm.client.farm import Farm
from compilefarm.client.records import Ledger
from compilefarm.client.testing import FakeGraphModule, FakeRuntime, FarmServicer
from compilefarm.core.errors import InvalidRequest
from compilefarm.core.metadata import REQUEST_KEY, TENANT_KEY
from compilefarm.graph.bypass import Bypass
from compilefarm.v1 import compile_service_pb2 as wire
from compilefarm.v1.job_pb2 import PHASE_COMPILING, PHASE_TUNING, PHASE_VERIFYING
from compilefarm.v1.manifest_pb2 import Timing

pytestmark = pytest.mark.timeout(60)


class Pod:
    """A Farm and what it stands on."""

    def __init__(self, address: str, **settings: Any) -> None:
        self.runtime = FakeRuntime()
        self.ledger = Ledger()
        dependencies = Dependencies(runtime=self.runtime, clock=SystemClock(), ledger=self.ledger)
        self.farm = Farm(address, dependencies=dependencies, **settings)

    def where(self, name: str = "graph") -> str:
        place: str = self.farm.backend(FakeGraphModule(name), [])()[0]
        return place


def reported(servicer: FarmServicer, graphs: int) -> list[wire.GraphReport]:
    """Waits until that many graphs were reported."""
    while len(servicer.reports) < graphs:
        servicer.reported.wait()
        servicer.reported.clear()
    return servicer.reports


def test_a_graph_from_the_farm_is_reported_with_what_it_spared(servicer: FarmServicer, address: str) -> None:
    servicer.timings = [
        Timing(phase=PHASE_COMPILING, seconds=20.0),
        Timing(phase=PHASE_TUNING, seconds=10.0),
        Timing(phase=PHASE_VERIFYING, seconds=5.0),
    ]
    pod = Pod(address)
    assert pod.where() == "farm"
    assert pod.where() == "farm"
    first, second = reported(servicer, 2)
    assert {first.outcome, second.outcome} == {wire.GRAPH_OUTCOME_COMPILED, wire.GRAPH_OUTCOME_HIT}
    assert (first.avoided_seconds, first.local_seconds, first.reason) == (30.0, 0.0, "")
    assert first.spent_seconds > 0
    assert pod.ledger.records()[0].compile_seconds == 30.0
    pod.farm.close()


def test_a_fallback_is_reported_with_its_reason_and_its_price(servicer: FarmServicer, address: str) -> None:
    def refuse() -> None:
        raise InvalidRequest("no")

    pod = Pod(address)
    servicer.before_compile = refuse
    assert pod.where() == "local"
    (graph,) = reported(servicer, 1)
    assert (graph.outcome, graph.reason) == (wire.GRAPH_OUTCOME_FALLBACK, "invalid_request")
    assert graph.local_seconds > 0
    assert graph.avoided_seconds == 0
    pod.farm.close()


def test_what_cannot_be_told_is_told_later_and_once(servicer: FarmServicer, address: str) -> None:
    pod = Pod(address)
    pod.runtime.encoding_error = Bypass("dynamic_shapes", "sizes differ")
    # The farm was not asked yet, so there is no line.
    assert pod.where("one") == "local"
    assert pod.where("two") == "local"
    pod.runtime.encoding_error = None
    assert pod.where("three") == "farm"
    assert pod.where("four") == "farm"
    graphs = reported(servicer, 4)
    assert sorted(graph.reason for graph in graphs) == ["", "", "dynamic_shapes", "dynamic_shapes"]
    assert len(servicer.reports) == 4
    pod.farm.close()


def test_a_farm_that_takes_no_reports_costs_nothing(servicer: FarmServicer, address: str) -> None:
    def break_down(request: Any, context: Any) -> wire.ReportResponse:
        raise AssertionError("a defect of the farm")

    servicer.Report = break_down  # type: ignore[method-assign]
    pod = Pod(address)
    assert [pod.where(name) for name in ("one", "two", "three")] == ["farm"] * 3
    pod.farm.close()


def test_the_farm_learns_the_name_of_the_request_and_the_tenant(servicer: FarmServicer, address: str) -> None:
    pod = Pod(address, tenant="search")
    assert pod.where() == "farm"
    (record,) = pod.ledger.records()
    assert servicer.metadata[TENANT_KEY] == "search"
    assert servicer.metadata[REQUEST_KEY] == record.request_id
    assert record.request_id
    pod.farm.close()


def test_without_a_tenant_none_is_named(servicer: FarmServicer, address: str) -> None:
    pod = Pod(address)
    assert pod.where() == "farm"
    assert TENANT_KEY not in servicer.metadata
    pod.farm.close()
