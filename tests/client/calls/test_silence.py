"""A farm that answers and then hangs: in whichever call, it costs one silence, and not one for every graph."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from compilefarm.client.config import ClientConfig
from compilefarm.client.connection import Connection
from compilefarm.client.dependencies import Dependencies
from compilefarm.client.farm import Farm
from compilefarm.client.plans import Plan, PlannedGraph
from compilefarm.client.prewarming import Prewarming
from compilefarm.client.records import GraphRecord, Ledger
from compilefarm.client.testing import FakeClock, FakeGraphModule, FakeRuntime, FarmServicer, serving
from compilefarm.core.digests import digest_of
from compilefarm.core.requests import Request
from compilefarm.service.testing.jobs import sample_job

HELD = {digest_of(b"tensor"): b"tensor"}


class HangingFarm(FarmServicer):
    """A farm that hangs in one kind of call.

    Attributes:
        hangs_in: which.
        hung: how often it did.
    """

    def __init__(self) -> None:
        super().__init__()
        self.hangs_in = ""
        self.hung = 0
        self.before_answer = self._reach
        self.after_progress = lambda: self._reach("Compile")
        self.on_read = self._read

    def _reach(self, method: str) -> None:
        # The first question is the one by which a client sees that there is a farm.
        if method == self.hangs_in and not (method == "FindMissing" and self.questions == 1):
            self.hung += 1
            self.hold()

    def _read(self, content: bytes, offset_bytes: int) -> Iterator[bytes]:
        yield content[offset_bytes:3]
        self._reach("Read")
        yield content[3:]


@pytest.fixture
def farm(monkeypatch: pytest.MonkeyPatch) -> HangingFarm:
    monkeypatch.setattr("compilefarm.client.silence.LONGEST_SILENCE_SECONDS", 0.3)
    return HangingFarm()


@pytest.fixture
def address(farm: HangingFarm) -> Iterator[str]:
    with serving(farm) as address:
        yield address


def ask_for_graphs(address: str, **settings: Any) -> list[GraphRecord]:
    ledger = Ledger()
    dependencies = Dependencies(runtime=FakeRuntime(), clock=FakeClock(), ledger=ledger)
    with closing(Farm(address, dependencies=dependencies, **settings)) as farm:
        places = [farm.backend(FakeGraphModule(f"graph {number}", blobs=HELD), [])()[0] for number in range(5)]
    assert places == ["local"] * 5
    return list(ledger.records())


@pytest.mark.parametrize("call", ["FindMissing", "Write", "Compile", "Read"])
def test_a_farm_that_hangs_while_a_graph_is_made_costs_one_silence(call: str, farm: HangingFarm, address: str) -> None:
    farm.hangs_in = call
    if call in ("FindMissing", "Write"):
        farm.before_compile = lambda: farm.require_blobs(HELD)
    records = ask_for_graphs(address)
    assert [record.reason for record in records] == ["silent"] * 5
    assert "the farm has said nothing for 0.3 s" in records[0].message
    assert farm.hung == 1


def test_a_farm_that_hangs_while_a_graph_is_looked_up_costs_one_silence(farm: HangingFarm, address: str) -> None:
    farm.hangs_in = "Lookup"
    records = ask_for_graphs(address, on_miss="local")
    assert [(record.outcome, record.reason) for record in records] == [("fallback", "silent")] * 5
    assert farm.hung == 1


def test_an_unreachable_farm_is_left_alone_after_a_look_up(farm: HangingFarm, address: str) -> None:
    def break_down(method: str) -> None:
        if method == "Lookup":
            farm.hung += 1
            raise RuntimeError("the farm goes away")

    farm.before_answer = break_down
    records = ask_for_graphs(address, on_miss="local")
    assert {record.outcome for record in records} == {"fallback"}
    assert farm.hung == 1


def test_prewarming_leaves_a_farm_that_hangs(farm: HangingFarm, address: str) -> None:
    farm.hangs_in = "Compile"
    graphs = [
        PlannedGraph(file="", name="", nodes=3, count=1, request=Request(job=sample_job(target)), standing="miss")
        for target in ("torch.relu", "torch.sin", "torch.cos")
    ]
    connection = Connection(ClientConfig(address=address), clock=FakeClock())
    with closing(connection):
        report = Prewarming(connection, parallel=1, clock=FakeClock()).run(Plan(graphs=graphs))
    assert [(each.outcome, each.reason) for each in report.served] == [("failed", "silent")] * 3
    assert farm.hung == 1
