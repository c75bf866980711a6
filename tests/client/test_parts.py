"""Graphs with tensor subclasses: all that they amount to has programs of the farm, or the whole is compiled here."""

from __future__ import annotations

from typing import Any

import pytest

from compilefarm.client.dependencies import Dependencies
from compilefarm.client.farm import Farm
from compilefarm.client.options import Options
from compilefarm.client.recording_backend import RecordingBackend
from compilefarm.client.records import GraphRecord, Ledger
from compilefarm.client.runtime import Encoded
from compilefarm.client.testing import FakeClock, FakeGraphModule, FakeRuntime, FarmServicer
from compilefarm.graph.bypass import Bypass
from compilefarm.graph.plain_graphs import PlainGraph

GRAPH = FakeGraphModule(
    "whole",
    plain_graphs=(
        PlainGraph(role="forward", graph_module=FakeGraphModule("forward"), inputs=()),
        PlainGraph(role="backward", graph_module=FakeGraphModule("backward"), inputs=()),
    ),
)


class Runtime(FakeRuntime):
    """Torch that says of some graphs by their names that they cannot be sent."""

    refused: Exception | None = None

    def encode(self, graph_module: Any, example_inputs: Any, *, options: Options) -> Encoded:
        if graph_module.name == "backward" and self.refused is not None:
            raise self.refused
        return super().encode(graph_module, example_inputs, options=options)


class Pod:
    """A Farm and what it stands on."""

    def __init__(self, address: str, **settings: Any) -> None:
        self.runtime, self.ledger = Runtime(), Ledger()
        dependencies = Dependencies(runtime=self.runtime, clock=FakeClock(), ledger=self.ledger, patience_seconds=60)
        self.farm = Farm(address, dependencies=dependencies, **settings)

    def where(self) -> str:
        place: str = self.farm.backend(GRAPH, [], name="model")()[0]
        return place

    @property
    def records(self) -> list[GraphRecord]:
        return self.ledger.records()


def test_each_part_has_a_program_of_the_farm(address: str, servicer: FarmServicer) -> None:
    pod = Pod(address)
    assert [pod.where(), pod.where()] == ["farm", "farm"]
    assert [(each.name, each.outcome) for each in pod.records] == [
        *(("model forward", "compiled"), ("model backward", "compiled")),
        *(("model forward", "hit"), ("model backward", "hit")),
    ]
    assert len(servicer.compiles) == 2
    assert pod.runtime.local_compiles == 0


@pytest.mark.parametrize("error", [Bypass("unknown_target", "no such operator"), KeyError("defect")])
def test_one_part_without_a_program_has_the_whole_compiled_here(address: str, error: Exception) -> None:
    pod = Pod(address)
    pod.runtime.refused = error
    assert pod.where() == "local"
    assert pod.runtime.local_compiles == 1
    reason = getattr(error, "reason", "defect")
    assert [(each.name, each.reason, each.resort) for each in pod.records] == [
        ("model forward", reason, "local"),
        ("model backward", reason, "local"),
    ]
    assert {each.outcome for each in pod.records} == {"bypass" if isinstance(error, Bypass) else "fallback"}
    # Which of them is the reason.
    assert pod.records[0].message.startswith("with graph 1: ")


def test_what_torch_does_not_trace_is_compiled_here(address: str, servicer: FarmServicer) -> None:
    pod = Pod(address)
    pod.runtime.tracing_error = NotImplementedError("no rule for it")
    assert pod.where() == "local"
    (record,) = pod.records
    assert (record.name, record.outcome, record.reason) == ("model", "bypass", "plain_graphs")
    assert "no rule for it" in record.message
    assert servicer.compiles == []


def test_a_dead_farm_costs_one_compile() -> None:
    pod = Pod("127.0.0.1:1")
    assert pod.where() == "local"
    assert pod.runtime.local_compiles == 1
    assert [each.outcome for each in pod.records] == ["fallback"]


def test_error_raises_what_it_is(address: str) -> None:
    pod = Pod(address, on_miss="error")
    pod.runtime.refused = Bypass("unknown_target", "no such operator")
    with pytest.raises(Exception, match="nothing is stored"):
        pod.where()
    pod.runtime.tracing_error = NotImplementedError("no rule for it")
    with pytest.raises(Bypass, match="no rule for it"):
        pod.where()
    assert pod.runtime.local_compiles == 0


def test_parts_are_recorded_for_a_prewarm() -> None:
    runtime = Runtime()
    capture = RecordingBackend(runtime)
    graph = FakeGraphModule(
        "whole",
        plain_graphs=[
            PlainGraph(role=plain.role, graph_module=_Runnable(plain.role), inputs=()) for plain in GRAPH.plain_graphs
        ],
    )
    runtime.refused = Bypass("unknown_target", "no such operator")
    with pytest.raises(AttributeError):
        # A fake graph cannot be run.
        capture.backend(graph, [], name="model")
    recording = capture.recording()
    assert [each.name for each in recording.requests] == ["model forward"]
    assert [(each.name, each.reason) for each in recording.bypasses] == [("model backward", "unknown_target")]


class _Runnable(FakeGraphModule):
    def forward(self, *inputs: Any) -> Any:
        return inputs
