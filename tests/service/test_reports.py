"""What clients may tell."""

from __future__ import annotations

import pytest

from compilefarm.service.reports import Reports
from compilefarm.service.testing import Refused, calling, serving
from compilefarm.v1.compile_service_pb2 import GraphOutcome, GraphReport

HIT, FALLBACK = GraphOutcome.GRAPH_OUTCOME_HIT, GraphOutcome.GRAPH_OUTCOME_FALLBACK


@pytest.mark.parametrize(
    "graph",
    [
        GraphReport(),
        GraphReport(outcome=99),  # type: ignore[arg-type]  # of a later release
        GraphReport(outcome=HIT, spent_seconds=-1.0),
        GraphReport(outcome=HIT, avoided_seconds=float("nan")),
        GraphReport(outcome=HIT, local_seconds=float("inf")),
        GraphReport(outcome=HIT, avoided_seconds=1e9),
    ],
)
async def test_what_cannot_be_is_refused_as_a_whole(graph: GraphReport) -> None:
    async with serving() as gateway, calling(gateway.address) as calls:
        with pytest.raises(Refused) as refused:
            await calls.report(GraphReport(outcome=HIT), graph)
        assert (refused.value.status, refused.value.reason) == ("INVALID_ARGUMENT", "invalid_request")
        assert (await calls.status()).reports.graphs == 0


async def test_a_report_of_too_many_graphs_is_refused() -> None:
    async with serving() as gateway, calling(gateway.address) as calls:
        with pytest.raises(Refused, match="1001 graphs in one report: at most 1000"):
            await calls.report(*[GraphReport(outcome=HIT)] * 1001)
        await calls.report(*[GraphReport(outcome=HIT)] * 1000)


def test_reasons_that_strangers_make_up_are_few() -> None:
    reports = Reports()
    reports.add([GraphReport(outcome=FALLBACK, reason=f"reason_{number}") for number in range(1000)])
    reports.add([GraphReport(outcome=FALLBACK, reason=reason) for reason in ("Spaces and {braces}", "x" * 41)])
    reports.add([GraphReport(outcome=FALLBACK, reason="reason_7")])
    assert len(reports.graphs) <= 101
    assert reports.graphs["fallback", "reason_7"] == 2
    assert reports.count("fallback") == 1003
    assert all(len(reason) <= 40 for _, reason in reports.graphs)
